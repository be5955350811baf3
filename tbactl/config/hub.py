"""Whether a policy can be had from a hub, found out without asking it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tbactl.config.sections import RunConfig
from tbactl.config.tasks import POLICY_PREFIX
from tbactl.policies.packaged import PACKAGE_PREFIX

# As huggingface_hub reads HF_HUB_OFFLINE.
_TRUE = ("1", "ON", "YES", "TRUE")

NEEDED = "a hub name is ORG/NAME, with HF_HUB_OFFLINE unset or the model in the cache"


def may_be_on_hub(name: str) -> bool:
    """Whether a name has a hub's form, and the hub may be asked or its cache holds the model."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", name) or Path(name).parent.is_dir():
        return False
    is_offline = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return is_offline.upper() not in _TRUE or (_cache() / f"models--{name.replace('/', '--')}").is_dir()


def _cache() -> Path:
    home = os.environ.get("HF_HOME", os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface"))
    old = os.environ.get("HUGGINGFACE_HUB_CACHE", os.path.join(home, "hub"))
    return Path(os.path.expanduser(os.path.expandvars(os.environ.get("HF_HUB_CACHE", old))))


def missing_policy(config: RunConfig) -> list[str]:
    """A sentence when the policy that a run needs is no directory and cannot come from a hub either."""
    path = config.policy.path
    is_needed = config.searchers.engine != "fake" or config.trainer.kind != "fake"
    if not is_needed or path.startswith((POLICY_PREFIX, PACKAGE_PREFIX)):
        return []
    if Path(os.path.expanduser(path)).is_dir() or may_be_on_hub(path):
        return []
    return [f"policy.path = '{path}': there is no such directory, and it is no hub name that can be loaded: {NEEDED}."]
