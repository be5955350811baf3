from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tbactl.errors import ConfigError
from tbactl.replay.buffer import ReplayBuffer
from tbactl.replay.near_duplicates import EditDistance, EmbeddingCosine
from tbactl.replay.snapshot import save_buffer
from tbactl.trainer.buffers import new_buffer, saved_buffer
from tests.support.replay_groups import make_text_group
from tests.support.scripted_run import ScriptedRun
from tests.support.trainer_groups import make_config

EDITS = {"near_duplicates": "edit-distance"}


def run_of(tmp_path, mode="async", **replay):
    return make_config(tmp_path, mode=mode, replay=replay).run


def of_texts(*texts):
    return make_text_group(0, [((number,), text, float(number)) for number, text in enumerate(texts)])


@pytest.mark.parametrize("is_saved", [False, True], ids=["new", "saved"])
def test_buffer_is_as_configured(tmp_path, is_saved):
    run = run_of(tmp_path, capacity=7, capacity_per_prompt=3, eviction="lowest-reward", **EDITS)
    buffer = new_buffer(run)
    if is_saved:
        save_buffer(buffer, tmp_path / "replay")
        buffer = saved_buffer(run, tmp_path / "replay")
    assert (buffer.capacity, buffer.capacity_per_prompt) == (7, 3)
    members = [((number,), chr(97 + number) * 9, reward) for number, reward in enumerate([0.0, 3.0, 1.0, 2.0])]
    buffer.insert(make_text_group(1, members))
    assert sorted(stored.reward for stored in buffer.prompts[1].trajectories) == [1.0, 2.0, 3.0]
    buffer.insert(of_texts("tell me a joke", "tell me a yoke"))
    assert [stored.reward for stored in buffer.prompts[0].trajectories] == [1.0]


@pytest.mark.parametrize(
    ("replay", "mode", "kind"),
    [
        ({}, "async", type(None)),
        (EDITS, "async", EditDistance),
        (EDITS, "sync", type(None)),
        ({"near_duplicates": "embedding", "embedder": "x"}, "async", EmbeddingCosine),
    ],
)
def test_measure_of_near_duplicates_is_as_configured(tmp_path, replay, mode, kind):
    assert isinstance(new_buffer(run_of(tmp_path, mode=mode, **replay))._likeness, kind)


@pytest.mark.parametrize("is_saved", [False, True], ids=["new", "saved"])
def test_long_insertion_notes_progress(tmp_path, monkeypatch, is_saved):
    import tbactl.engines.sentence_encoder as module

    monkeypatch.setattr("tbactl.replay.near_duplicates._MAX_REMEMBERED", 1)
    monkeypatch.setattr(module, "SentenceEncoder", lambda source: lambda texts: np.eye(len(texts), 8, dtype="f4"))
    run = run_of(tmp_path, near_duplicates="embedding", embedder="x")
    save_buffer(ReplayBuffer(capacity=9, capacity_per_prompt=9), tmp_path / "replay")
    signs = []
    buffer = (
        saved_buffer(run, tmp_path / "replay", note_progress=lambda: signs.append(1))
        if is_saved
        else new_buffer(run, note_progress=lambda: signs.append(1))
    )
    buffer.insert(of_texts("a", "b", "c"))
    buffer.insert(make_text_group(0, [((9,), "d", 0.0)]))
    assert len(signs) >= 1


def test_encoder_is_loaded_when_the_first_group_arrives(tmp_path):
    buffer = new_buffer(run_of(tmp_path, near_duplicates="embedding", embedder=str(tmp_path / "nowhere")))
    with pytest.raises(ConfigError, match=r"replay\.embedder"):
        buffer.insert(of_texts("a", "b"))


def test_near_duplicates_of_a_run_are_counted_and_the_resumed_run_goes_on(tmp_path):
    settings = {"replay": EDITS, "checkpoint": {"period": 3}}
    first = ScriptedRun(tmp_path / "first", **settings)

    def spell(run):
        for searcher in run.searchers:
            make = searcher._group

            def spelled(make=make):
                group = make()
                words = [f"{number:04b}" * 3 for number in range(len(group.trajectories))]
                words[1] = words[0] + "!"
                return replace(
                    group,
                    trajectories=tuple(
                        replace(t, completion=replace(t.completion, text=word))
                        for t, word in zip(group.trajectories, words, strict=True)
                    ),
                )

            searcher._group = spelled

    spell(first)
    first.run()
    totals = [line["metrics"]["replay/near_duplicates/total"] for line in first.metrics()]
    groups = [line["metrics"]["intake/groups/total"] for line in first.metrics()]
    assert totals[-1] >= groups[-1] > 0, "one of each group at least"
    second = ScriptedRun(tmp_path / "second", resume=first.checkpoint(3), **settings)
    spell(second)
    second.run()
    assert second.metrics()[0]["metrics"]["replay/near_duplicates/total"] >= totals[2]
