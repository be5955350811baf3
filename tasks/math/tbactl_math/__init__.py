"""The math task of tbactl: word problems, a verifiable reward, and an evaluation."""
