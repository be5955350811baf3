"""What ships for tests, of tbactl and of third parties: fakes, faults, conformance suites."""
