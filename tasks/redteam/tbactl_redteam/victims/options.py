"""The table `task.options.victim` of a recipe. Light to import."""

from __future__ import annotations

import ipaddress
import math
import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import SplitResult, urlsplit

from pydantic import Field, field_validator, model_validator

from tbactl import registry
from tbactl.config.sections import NonNegativeFloat, PositiveFloat, PositiveInt, Section
from tbactl.errors import ConfigError
from tbactl.policies.packaged import PACKAGE_PREFIX, check_packaged_policy
from tbactl_redteam.victims.prompt_template import ALPACA, SLOT

ENGINE_ONLY = frozenset(
    ("policy", "engine", "engine_options", "dtype", "trust_remote_code", "max_prompt_tokens",
     "max_concurrent_sequences", "start_timeout_s", "max_restarts")
)  # fmt: skip
HTTP_ONLY = frozenset(
    ("url", "model", "api_key_env", "allow_http", "environment_proxies", "request_timeout_s", "max_retries",
     "retry_delay_s", "max_requests_per_s", "max_concurrent_requests", "max_response_bytes", "max_consecutive_failures")
)  # fmt: skip
# A recipe that extends another cannot take these away, only change `kind`.
_INHERITED = frozenset(("policy", "engine", "engine_options", "dtype", "start_timeout_s"))
_ATTACKS_PER_TIMEOUT = 128
_VARIABLE_NAME = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")


class VictimOptions(Section):
    """Who answers the attacks: a model on an engine of its own, or an OpenAI-compatible endpoint."""

    kind: Literal["engine", "http", "echo"] = "engine"
    """`engine`: a causal language model in a process beside the searcher. `http`: an OpenAI-compatible endpoint.
    `echo`: no model, the attack itself is the answer."""
    num_answers: PositiveInt = 5
    """Answers to each attack."""
    temperature: Annotated[float, Field(ge=0.0, le=10.0)] = 0.7
    """Of the answers; 0: greedy."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 0.92
    """Nucleus of the answers."""
    max_new_tokens: PositiveInt = 30
    """Answers are cut here."""
    prompt_style: Literal["chat", "plain"] = "chat"
    """`chat`: the user's message in the model's chat template; over HTTP `/chat/completions`. `plain`: the template as
    it is; over HTTP `/completions`."""
    template: str = SLOT
    """What the victim reads, with `{attack}` in it; or `alpaca`."""
    system_prompt: str | None = None
    """Before the user's message of a chat. None: what the chat template does without one."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """Answers depend on it, the attack and their number only. None: fresh ones each time. An endpoint may ignore it."""
    timeout_s: PositiveFloat = 150.0
    """Longest wait for the answers of one call, for each 128 attacks of it begun; what has not come then is missing.
    For a group, together with `start_timeout_s`, less than `supervision.progress_timeout_s`."""
    max_answer_characters: PositiveInt = 4000
    """Longer answers are cut."""

    policy: str = "package:smollm2-135m-instruct"
    """Hub name, directory, run or checkpoint, or `package:NAME`. It, `engine`, `engine_options`, `dtype` and
    `start_timeout_s` are without effect where `kind` is another, so that a recipe can extend one that has them."""
    engine: str = "vllm"
    """`vllm` or `transformers`, as `searchers.engine`."""
    engine_options: dict[str, Any] = Field(default_factory=dict)
    """As `searchers.engine_options`: on a GPU, for one, its share of the memory."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of weights and computation."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Off unless you trust its author."""
    max_prompt_tokens: PositiveInt = 256
    """Of attack and template together; the victim is not asked longer ones."""
    max_concurrent_sequences: PositiveInt = 64
    """Answers that are generated together."""
    start_timeout_s: PositiveFloat = 120.0
    """Longest time to load the model, a download included: raise it, and `supervision.progress_timeout_s`, for one."""
    max_restarts: Annotated[int, Field(ge=0)] = 3
    """How often in a row the victim's process may die, or not answer in time, before the run ends."""

    url: str | None = None
    """Of the endpoint, up to and without `/chat/completions`: `https://host/v1`."""
    model: str | None = None
    """The model's name there."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the key. None: no key is sent. Never the key itself."""
    allow_http: bool = False
    """Permit `http://` to another machine: key, attacks and answers can be read on the way."""
    environment_proxies: bool = False
    """Go through the proxies, and trust the certificates, that the environment names (HTTPS_PROXY, SSL_CERT_FILE)."""
    request_timeout_s: PositiveFloat = 60.0
    """Longest time for one request."""
    max_retries: Annotated[int, Field(ge=0, le=20)] = 5
    """Of one request, after statuses 408, 425, 429 and 5xx, time-outs and cut connections."""
    retry_delay_s: PositiveFloat = 0.5
    """Before the first retry; twice as long before each further one, up to 30 s. `Retry-After` overrides it."""
    max_requests_per_s: NonNegativeFloat = 0.0
    """Of each searcher, retries included; 0: no limit."""
    max_concurrent_requests: PositiveInt = 8
    """Of each searcher."""
    max_response_bytes: PositiveInt = 1_000_000
    """A longer response is given up unread."""
    max_consecutive_failures: PositiveInt = 20
    """Attacks in a row without any answer before the run ends."""

    @field_validator("api_key_env", mode="before")
    @classmethod
    def _is_a_name(cls, value: Any) -> Any:
        # The value is not repeated: it may be a key.
        if value is not None and not (isinstance(value, str) and len(value) <= 64 and _VARIABLE_NAME.fullmatch(value)):
            raise ValueError(
                "must be the name of an environment variable (capital letters, digits, underscores) that holds the "
                "key; a key itself does not belong into a recipe"
            )
        return value

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        own = {"engine": ENGINE_ONLY, "http": HTTP_ONLY}
        foreign = sorted(
            self.model_fields_set & (ENGINE_ONLY | HTTP_ONLY) - own.get(self.kind, frozenset()) - _INHERITED
        )
        if foreign:
            others = " or ".join(f"'{kind}'" for kind, names in own.items() if names & set(foreign))
            raise ValueError(
                f"{', '.join(foreign)}: only for kind = {others}, and this victim has kind = '{self.kind}'; leave "
                f"{'it' if len(foreign) == 1 else 'them'} away or change kind"
            )
        if self.template != ALPACA and self.template.count(SLOT) != 1:
            raise ValueError(f"template must be '{ALPACA}', or hold {SLOT} exactly once")
        if self.system_prompt is not None and self.prompt_style != "chat":
            raise ValueError("system_prompt has no effect with prompt_style = 'plain'; put it into template")
        if self.kind == "http":
            _check_endpoint(self)
        return self

    def call_timeout_s(self, num_attacks: int) -> float:
        """Longest wait for the answers to so many attacks: an evaluation asks for many more than a group does."""
        return self.timeout_s * max(1, math.ceil(num_attacks / _ATTACKS_PER_TIMEOUT))

    def longest_answer(self, num_attacks: int) -> tuple[float, str]:
        """Longest time of a first call for so many attacks, in seconds, and the settings that it comes from."""
        parts = math.ceil(num_attacks / _ATTACKS_PER_TIMEOUT)
        seconds = self.call_timeout_s(num_attacks)
        settings = f"task.options.victim.timeout_s = {self.timeout_s:g}"
        settings += f" for each {_ATTACKS_PER_TIMEOUT} attacks begun" if parts > 1 else ""
        if self.kind == "engine":  # it is loaded at the first call, and anew after it was lost
            seconds += self.start_timeout_s
            settings += f" + start_timeout_s = {self.start_timeout_s:g}"
        return seconds, settings

    @property
    def name(self) -> str:
        """How messages call the victim; holds no secret."""
        names = {"engine": self.policy, "http": f"{self.model} at {self.url}", "echo": "echo of the attack"}
        return names[self.kind]


def victim_problem(options: VictimOptions) -> str | None:
    """Why the victim cannot be had, as far as can be seen without loading or asking it (a sentence), or None."""
    if options.kind == "http":
        variable = options.api_key_env
        if variable is not None and not os.environ.get(variable):
            return (
                f"api_key_env = '{variable}': the environment has no such variable, or it is empty; set it to the key"
            )
        if find_spec("httpx") is None:
            return "kind = 'http' needs the package 'httpx', which is not installed; `pip install httpx`"
        return None
    if options.kind == "echo":
        return None
    try:
        registry.check_name("tbactl.engines", options.engine)
    except ConfigError as error:
        return f"engine: {error}"
    policy = options.policy
    if policy.startswith(PACKAGE_PREFIX):
        try:
            check_packaged_policy(policy)
        except ConfigError as error:
            return f"policy = '{policy}': {error}"
    elif policy.startswith((".", "/", "~")) and not Path(policy).expanduser().exists():
        return f"policy = '{policy}': there is no such directory"
    return None


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine, without asking a name server."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_endpoint(options: VictimOptions) -> None:
    missing = [name for name in ("url", "model") if not getattr(options, name)]
    if missing:
        raise ValueError(f"kind = 'http' needs {' and '.join(missing)}")
    assert options.url is not None
    parts = _split(options.url)
    # The URL itself is shown only where it can hold no password.
    if parts is None or parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ValueError(
            "url must be of the form https://host/v1, without user name, password, query and fragment; a key goes into "
            "the environment variable that api_key_env names"
        )
    if parts.path.rstrip("/").endswith("/completions"):
        raise ValueError(f"url = '{options.url}' must end before /chat/completions or /completions")
    if parts.scheme == "http" and not (options.allow_http or is_loopback(parts.hostname or "")):
        raise ValueError(
            f"url = '{options.url}' is not encrypted: https is needed to another machine, or allow_http = true where "
            f"key, attacks and answers may be read on the way"
        )


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError:
        return None
    is_valid = parts.scheme in ("http", "https") and parts.hostname and port_is_valid and url.isprintable()
    return parts if is_valid and " " not in url else None
