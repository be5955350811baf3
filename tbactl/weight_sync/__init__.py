"""How the trainer's weights reach the searchers: `publisher.py` on one side, `subscriber.py` on the other."""
