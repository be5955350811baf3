"""The victim behind an endpoint, against a real server on loopback that behaves badly."""

from __future__ import annotations

import email.utils
import gc
import json
import logging
import socket
import threading
import time
import traceback
from contextlib import contextmanager
from types import SimpleNamespace

import httpx
import pytest

from tbactl.clock import FakeClock
from tbactl.errors import ConfigError, TaskError
from tbactl_redteam.victims import VictimOptions, http_pacing, load_victim
from tbactl_redteam.victims.http_pacing import Pacer, retry_after_s, retry_delay_s
from tests.support.endpoint_stub import EndpointStub, Reply, chat, completion

KEY = "sk-very-secret-0123456789"
ATTACKS = ["Curse the rain.", "Roast my hat.", "Insult my singing."]


def answers_of(stub, attacks=ATTACKS, **settings):
    """Ask a new victim once."""
    with victim_of(stub, **settings) as victim:
        return victim.answer(attacks)


@contextmanager
def victim_of(stub, **settings):
    """Its retries are quick, and the key is set."""
    fast = {"retry_delay_s": 0.01, "timeout_s": 60.0, "num_answers": 2, "api_key_env": "VICTIM_KEY"}
    options = VictimOptions.model_validate({"kind": "http", "url": stub.url, "model": "m", **fast, **settings})
    victim = load_victim(options)
    try:
        yield victim
    finally:
        victim.close()


def flat(answers):
    return [text for row in answers for text in row]


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("VICTIM_KEY", KEY)


@pytest.fixture(autouse=True)
def no_key_in_logs(caplog):
    caplog.set_level(logging.DEBUG)
    yield
    assert KEY not in caplog.text


def test_answers_come_in_the_order_of_the_attacks():
    third_is_there = threading.Event()

    def script(number, body):
        if number == 1:  # the first one goes alone
            third_is_there.wait(30.0)
        elif number == 2:
            third_is_there.set()
        return chat(f" {body['messages'][-1]['content']}! ", delay_s=0.02 * (number % 3))

    with EndpointStub(script) as stub:
        assert answers_of(stub) == [[f"{attack}!"] * 2 for attack in ATTACKS]
        assert stub.max_together > 1


def test_a_request_says_what_the_options_say():
    with EndpointStub(lambda *_: chat("ok")) as stub:
        answers_of(stub, ATTACKS[:1], num_answers=1, system_prompt="Be kind.", template="Q: {attack}", temperature=0.1)
    [request] = stub.requests
    assert request.path == "/v1/chat/completions"
    assert request.headers["Authorization"] == f"Bearer {KEY}"
    assert request.body == {
        "model": "m",
        "max_tokens": 30,
        "temperature": 0.1,
        "top_p": 0.92,
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Q: Curse the rain."}],
    }


def test_plain_style_asks_for_completions():
    with EndpointStub(lambda *_: completion("damn rain")) as stub:
        assert answers_of(stub, ATTACKS[:1], prompt_style="plain", template="alpaca") == [["damn rain"] * 2]
    assert stub.requests[0].path == "/v1/completions"
    assert "### Instruction:\nCurse the rain.\n" in stub.requests[0].body["prompt"]


def test_no_key_is_sent_where_none_is_named():
    with EndpointStub(lambda *_: chat("ok")) as stub:
        answers_of(stub, api_key_env=None)
    assert all("Authorization" not in request.headers for request in stub.requests)


def test_seeds_depend_on_attack_and_number_only():
    with EndpointStub(lambda *_: chat("ok")) as stub:
        answers_of(stub, ATTACKS, seed=1)
        first = {(r.body["messages"][0]["content"], r.body["seed"]) for r in stub.requests}
        stub.requests.clear()
        answers_of(stub, ATTACKS[::-1], seed=1)
        assert {(r.body["messages"][0]["content"], r.body["seed"]) for r in stub.requests} == first
    assert len(first) == 6
    assert len({seed for _, seed in first}) == 6


@pytest.mark.parametrize(
    "bad",
    [
        Reply(status=500, body=b"oops"),
        Reply(status=503),
        Reply(status=429),
        Reply(status=408),
        chat("cut off in the middle", cut_after=20),
        chat("never begins", cut_after=0),
    ],
    ids=["500", "503", "429", "408", "cut", "empty"],
)
def test_what_passes_is_asked_for_again(bad):
    with EndpointStub(lambda number, _: bad if number % 2 else chat("fine")) as stub:
        assert answers_of(stub) == [["fine"] * 2] * 3
        assert len(stub.requests) > 6


def test_a_slow_request_is_given_up_and_asked_again():
    with EndpointStub(lambda number, _: chat("fine", delay_s=0.0 if number else 120.0)) as stub:
        start_s = time.monotonic()
        assert answers_of(stub, request_timeout_s=1.0) == [["fine"] * 2] * 3
        assert time.monotonic() - start_s < 60.0


def test_a_response_that_drips_does_not_hold_on_for_longer_than_a_request_may():
    with EndpointStub(lambda number, _: chat("fine") if number != 1 else chat("slow", drip_s=1.5)) as stub:
        start_s = time.monotonic()
        # So long that those that do not drip are in time even where nobody gets a core for a while.
        answers = answers_of(stub, request_timeout_s=4.0, max_retries=0)
        assert sum(row.count(None) for row in answers) == 1
        assert time.monotonic() - start_s < 60.0


@pytest.mark.parametrize(
    "body",
    [
        b"<html>no</html>",
        b'"',
        b"null",
        b"[]",
        b'{"choices": []}',
        b'{"choices": [{}]}',
        b'{"choices": [{"message": {}}]}',
        b'{"choices": [{"message": {"content": 7}}]}',
        b'{"choices": [{"message": {"content": "x"}}]} trailing',
        b'{"choices": [{"message": {"content": "\xff"}}]}',
        b'{"choices": [{"message": {"content": "\\ud800"}}]}',
        b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b"",
    ],
)
def test_a_malformed_response_is_a_missing_answer(body, caplog):
    with EndpointStub(lambda number, _: chat("fine") if number != 1 else Reply(body=body)) as stub:
        answers = answers_of(stub)
    assert sorted(map(str, flat(answers))) == ["None", *["fine"] * 5]
    assert len(stub.requests) == 6  # such a response is not asked for again
    assert "failed_requests=1" in caplog.text


@pytest.mark.parametrize("declares_length", [True, False])
def test_a_huge_response_is_not_read_to_its_end(declares_length, caplog):
    huge = chat("x" * 20_000_000, declares_length=declares_length)
    with EndpointStub(lambda number, _: chat("fine") if number != 1 else huge) as stub:
        answers = answers_of(stub)
        assert stub.num_sent_bytes < 15_000_000  # the rest: socket buffers
    assert sorted(map(str, flat(answers))) == ["None", *["fine"] * 5]
    assert "max_response_bytes" in caplog.text


def test_a_compressed_response_is_refused():
    bomb = chat("x", headers={"Content-Encoding": "gzip"})
    with EndpointStub(lambda number, _: chat("fine") if number != 1 else bomb) as stub:
        assert flat(answers_of(stub)).count(None) == 1
        assert stub.requests[0].headers["Accept-Encoding"] == "identity"


def test_a_long_answer_is_cut():
    with EndpointStub(lambda *_: chat("y" * 500_000)) as stub:
        assert answers_of(stub, ATTACKS[:1], max_answer_characters=10) == [["y" * 10] * 2]


@pytest.mark.parametrize("text", ["\x1b[2J\x1b]0;owned\x07", "[bold]x[/bold]", "<script>1</script>", "\u202eabc"])
def test_an_answer_is_passed_on_as_it_is(text):
    with EndpointStub(lambda *_: chat(text)) as stub:
        assert answers_of(stub, ATTACKS[:1]) == [[text] * 2]


@pytest.mark.parametrize("message", [{"content": None}, {"content": ""}, {"content": None, "tool_calls": []}])
def test_an_empty_answer_is_an_answer(message):
    reply = Reply(body=json.dumps({"choices": [{"message": message}]}).encode())
    with EndpointStub(lambda *_: reply) as stub:
        assert answers_of(stub, ATTACKS[:1]) == [["", ""]]


def test_a_refusal_is_an_answer():
    reply = Reply(body=json.dumps({"choices": [{"message": {"content": None, "refusal": "I will not."}}]}).encode())
    with EndpointStub(lambda *_: reply) as stub:
        assert answers_of(stub, ATTACKS[:1]) == [["I will not."] * 2]


@pytest.mark.parametrize(("status", "said"), [(401, "refuses the key"), (403, "forbids"), (404, "does not know")])
@pytest.mark.parametrize("first_bad", [0, 3])
def test_a_refusal_of_the_endpoint_ends_the_run_at_once(status, said, first_bad):
    body = f"no \x1b[2J {KEY}".encode()
    bad = Reply(status=status, body=body)
    with EndpointStub(lambda number, _: bad if number >= first_bad else chat("fine")) as stub:
        with pytest.raises(ConfigError, match=said) as caught:
            answers_of(stub, max_concurrent_requests=1)
        assert len(stub.requests) == first_bad + 1
    message = "".join(traceback.format_exception(caught.value))
    assert KEY not in message
    assert "\x1b" not in str(caught.value)
    assert stub.url in message


def test_a_redirect_is_not_followed():
    with EndpointStub(lambda *_: chat("stolen")) as other:
        moved = Reply(status=307, headers={"Location": f"{other.url}/chat/completions"})
        with EndpointStub(lambda *_: moved) as stub, pytest.raises(ConfigError, match="redirects"):
            answers_of(stub)
        assert other.requests == []


def test_another_client_error_is_a_missing_answer_and_not_asked_again(caplog):
    bad = Reply(status=400, body=f"bad prompt {KEY}".encode())
    with EndpointStub(lambda number, _: chat("fine") if number != 1 else bad) as stub:
        assert flat(answers_of(stub)).count(None) == 1
        assert len(stub.requests) == 6
    assert "bad prompt ***" in caplog.text


def test_retry_after_is_honoured_by_all_requests():
    busy = Reply(status=429, headers={"Retry-After": "1"})
    with EndpointStub(lambda number, _: busy if number == 1 else chat("fine")) as stub:
        assert answers_of(stub, max_concurrent_requests=1) == [["fine"] * 2] * 3
    assert stub.requests[2].at_s - stub.requests[1].at_s >= 0.95


def test_a_retry_after_beyond_the_time_limit_is_not_waited_for(caplog):
    busy = Reply(status=429, headers={"Retry-After": "86400"})
    with EndpointStub(lambda number, _: chat("fine") if number < 2 else busy) as stub:
        start_s = time.monotonic()
        answers = answers_of(stub, max_concurrent_requests=1)
        assert time.monotonic() - start_s < 30.0
    assert flat(answers).count(None) == 4
    assert "no turn before timeout_s" in caplog.text


def test_requests_are_not_sent_faster_than_the_rate():
    with EndpointStub(lambda *_: chat("fine")) as stub, victim_of(stub, max_requests_per_s=10.0) as victim:
        start_s = time.monotonic()  # not when the first one arrived, which may be late
        victim.answer(ATTACKS)
    assert max(request.at_s for request in stub.requests) - start_s >= 5 / 10.0


def test_no_more_requests_run_together_than_allowed():
    with EndpointStub(lambda *_: chat("fine", delay_s=0.05)) as stub:
        answers_of(stub, max_concurrent_requests=2)
    assert stub.max_together <= 2


def test_an_endpoint_that_is_not_there_is_a_clear_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refuses
        options = {"kind": "http", "url": f"http://127.0.0.1:{taken.getsockname()[1]}/v1", "model": "m"}
        victim = load_victim(VictimOptions(**options, retry_delay_s=0.01, max_retries=2))
        with pytest.raises(ConfigError, match="cannot be reached"):
            victim.answer(ATTACKS)
        victim.close()


def test_an_endpoint_that_goes_away_ends_the_run_after_so_many_attacks():
    attacks = [f"Curse item {i}." for i in range(12)]
    with EndpointStub(lambda number, _: chat("fine") if number < 4 else Reply(status=502)) as stub:
        with pytest.raises(TaskError, match="last 5 attacks"):
            answers_of(stub, attacks, max_retries=1, max_consecutive_failures=5, max_concurrent_requests=1)
        assert len(stub.requests) < 30


def test_attacks_without_an_answer_are_counted_over_calls_and_reset_by_an_answer():
    fails = {"now": True}
    options = {"retry_delay_s": 0.01, "max_retries": 0, "max_consecutive_failures": 3, "num_answers": 1}
    with EndpointStub(lambda *_: Reply(status=500) if fails["now"] else chat("fine")) as stub:
        victim = load_victim(VictimOptions(kind="http", url=stub.url, model="m", **options))
        assert victim.answer(ATTACKS[:1]) == [[None]]
        fails["now"] = False
        assert victim.answer(ATTACKS[:1]) == [["fine"]]
        fails["now"] = True
        assert victim.answer(ATTACKS[:2]) == [[None], [None]]
        with pytest.raises(TaskError, match="status 500"):
            victim.answer(ATTACKS[:1])
        victim.close()


def test_a_call_ends_in_time_and_keeps_what_has_come(caplog):
    with EndpointStub(lambda number, _: chat("fine", delay_s=0.0 if number < 3 else 120.0)) as stub:
        start_s = time.monotonic()
        answers = answers_of(stub, timeout_s=4.0, max_concurrent_requests=1)
        assert time.monotonic() - start_s < 60.0
    assert flat(answers).count("fine") == 3
    assert "answers_missing=3 reason=not within 4 s" in caplog.text


def test_an_endpoint_that_never_answers_ends_the_run():
    with EndpointStub(lambda *_: chat("late", delay_s=30.0)) as stub, pytest.raises(TaskError, match="nothing came"):
        answers_of(stub, timeout_s=0.5, max_consecutive_failures=3)


def test_an_endpoint_that_repeats_the_key_does_not_get_it_into_an_answer():
    with EndpointStub(lambda *_: chat(f"your key is {KEY}")) as stub:
        assert answers_of(stub, ATTACKS[:1]) == [["your key is ***"] * 2]


def test_the_key_is_in_no_representation(monkeypatch):
    options = VictimOptions(kind="http", url="https://localhost/v1", model="m", api_key_env="VICTIM_KEY")
    victim = load_victim(options)
    assert KEY not in repr(victim) + str(vars(victim).keys()) + repr(options) + options.model_dump_json()
    victim.close()


@pytest.mark.parametrize("value", [None, "", "  ", "bad\nkey", "bad key", "schlüssel"])
def test_a_key_that_cannot_be_sent_is_refused_without_being_shown(monkeypatch, value):
    monkeypatch.delenv("VICTIM_KEY")
    if value is not None:
        monkeypatch.setenv("VICTIM_KEY", value)
    options = VictimOptions(kind="http", url="https://localhost/v1", model="m", api_key_env="VICTIM_KEY")
    with pytest.raises(ConfigError, match="VICTIM_KEY") as caught:
        load_victim(options)
    assert not value or not value.strip() or value not in str(caught.value)


def test_proxies_of_the_environment_are_used_only_where_asked_for(monkeypatch):
    with EndpointStub(lambda *_: chat("by proxy")) as proxy, EndpointStub(lambda *_: chat("direct")) as stub:
        monkeypatch.setenv("HTTP_PROXY", proxy.url.removesuffix("/v1"))
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        assert answers_of(stub, ATTACKS[:1]) == [["direct"] * 2]
        assert answers_of(stub, ATTACKS[:1], environment_proxies=True) == [["by proxy"] * 2]


def test_calls_leave_no_task_and_no_connection_behind():
    def script(number, _):
        return Reply(status=401) if number == 3 else chat("x", delay_s=0.3 if number else 0.0)

    with EndpointStub(script) as stub, pytest.raises(ConfigError):
        answers_of(stub)
    gc.collect()  # "was never retrieved" and "unclosed" would be raised here
    assert not [item for item in gc.get_objects() if isinstance(item, httpx.AsyncClient) and not item.is_closed]


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(None, None), ("3", 3.0), (" 7 ", 7.0), ("0", 0.0), ("-1", None), ("soon", None), ("9" * 40, None), ("1.5", None)],
)
def test_retry_after_is_seconds_or_a_date(header, seconds):
    assert retry_after_s(header) == seconds


def test_retry_after_as_a_date():
    start_s = time.time()
    found_s = retry_after_s(email.utils.formatdate(start_s + 60, usegmt=True))
    assert found_s is not None and 59 - (time.time() - start_s) <= found_s <= 60
    assert retry_after_s(email.utils.formatdate(time.time() - 60, usegmt=True)) == 0.0


def test_retries_wait_longer_each_time_up_to_a_bound():
    for attempt in range(12):
        full_s = min(0.5 * 2**attempt, 30.0)
        assert full_s / 2 <= retry_delay_s(attempt, first_s=0.5) <= full_s


async def _turns(pacer, number, deadline_s):
    return [await pacer.turn(deadline_s=deadline_s) for _ in range(number)]


def test_no_turn_is_given_after_the_deadline(monkeypatch):
    import asyncio

    clock = FakeClock()

    async def sleep(seconds):
        clock.sleep(seconds)

    monkeypatch.setattr(http_pacing, "time", SimpleNamespace(monotonic=clock.monotonic_s))
    monkeypatch.setattr(http_pacing, "asyncio", SimpleNamespace(sleep=sleep))
    pacer = Pacer(max_requests_per_s=10.0)
    assert asyncio.run(_turns(pacer, 4, 0.25)) == [True, True, True, False]
    assert clock.monotonic_s() == pytest.approx(0.2)


def test_an_attack_that_was_given_up_before_the_call_is_over_counts_once():
    def script(number, body):
        return chat("late", delay_s=60.0) if "hat" in body["messages"][-1]["content"] else Reply(status=500)

    with EndpointStub(script) as stub:
        settings = {"num_answers": 1, "max_retries": 0, "timeout_s": 2.0, "max_consecutive_failures": 3}
        assert answers_of(stub, ATTACKS[:2], **settings) == [[None], [None]]
