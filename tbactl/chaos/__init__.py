"""Faults on purpose: small real runs, one fault in each, and the check that nothing hangs, stays behind or is lost.

schedule.py     which faults, in which order: a function of the seed
campaign.py     runs them, a few at a time
case.py         one run: start, wait for the phase, strike, watch, judge, resume
supervise.py    the run's supervisor, in a process of its own
child.py        the run's trainer and searchers: the real ones, with fake engine and learner
strikes.py      faults from outside: signals, damaged bytes, full file systems
sabotage.py     faults from inside a process
books.py        what the rings acknowledged against what the trainer has
expectation.py  how a run with a fault must end
"""
