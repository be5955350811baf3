"""Classifiers: found by name, labels found by name, one number for each answer whatever else is in the call."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tbactl.errors import ConfigError
from tbactl.testing.task_conformance import HOSTILE_TEXTS
from tbactl_redteam.classifiers import classifier_problem, load_classifier
from tests.support.reward_classifiers import build_classifier, remove_weights
from tests.support.tiny_policy import make_tiny_policy

ANSWERS = ["cats sleep .", "", "dogs run on the mat . dogs run", "a poem", "the the cats"]
ATTACKS = ["sleep", "run", "a mat", "cats", "the dogs"]
GUARD_TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<verdict>{% endif %}"
)


def set_config(directory, **settings):
    path = Path(directory, "config.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def classifier_of(directory, *, labels, **options):
    """A random classifier whose outputs are named."""
    build_classifier(directory, kind="bert", num_labels=len(labels))
    set_config(
        directory, id2label=dict(enumerate(labels)), label2id={label: i for i, label in enumerate(labels)}, **options
    )
    return str(directory)


def test_importing_the_names_imports_nothing_heavy():
    code = (
        "import sys; from tbactl_redteam.classifiers import classifier_problem\n"
        "assert classifier_problem('x/y') is None\n"
        "assert not {'torch', 'transformers', 'sklearn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("profanty", "did you mean 'profanity'"),
        ("nothing-like-it", "guard:NAME"),
        ("./no/such/directory", "no such directory"),
        ("guard:./no/such/directory", "no such directory"),
        ("guard:", "there is no classifier"),
        ("", "there is no classifier"),
    ],
)
def test_unknown_classifier_is_refused_with_a_way_out(name, message):
    with pytest.raises(ConfigError, match=message):
        load_classifier(name)
    assert classifier_problem("owner/name") is classifier_problem("guard:owner/name") is None


@pytest.mark.skipif(find_spec("profanity_check") is None, reason="alt-profanity-check is not installed")
def test_profanity_tells_rude_from_polite_and_takes_any_text():
    classifier = load_classifier("profanity")
    answers = ["You are a damn stupid idiot.", "What a lovely day, thank you.", "", *HOSTILE_TEXTS.values()]
    toxicity = classifier.toxicity([""] * len(answers), answers)
    assert toxicity[0] > 0.8 > 0.2 > toxicity[1]
    assert all(type(item) is float and 0.0 <= item <= 1.0 for item in toxicity)
    assert classifier.toxicity([], []) == []


@pytest.mark.fault("I-84")
def test_label_order_reversed_gives_the_same_toxicity_with_outputs_exchanged(tmp_path):
    """The label is found by name: the same weights with exchanged names mean the opposite."""
    first = load_classifier(classifier_of(tmp_path / "a", labels=["nothate", "hate"]))
    second = load_classifier(classifier_of(tmp_path / "b", labels=["hate", "nothate"]))
    pairs = zip(first.toxicity(ATTACKS, ANSWERS), second.toxicity(ATTACKS, ANSWERS), strict=True)
    for hate, other in pairs:
        assert hate + other == pytest.approx(1.0)
        assert abs(hate - other) > 1e-3


def test_toxicity_is_the_softmax_of_the_models_own_logits(tmp_path):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    directory = classifier_of(tmp_path / "a", labels=["neutral", "offensive", "spam"])
    model = AutoModelForSequenceClassification.from_pretrained(directory).eval()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    with torch.no_grad():
        expected = [
            model(**tokenizer(answer, return_tensors="pt")).logits.softmax(-1)[0, 1].item() for answer in ANSWERS
        ]
    assert load_classifier(directory).toxicity(ATTACKS, ANSWERS) == pytest.approx(expected, abs=1e-6)


def test_multi_label_model_gives_the_sigmoid_of_its_toxic_label(tmp_path):
    labels = ["toxic", "threat", "insult"]
    soft = load_classifier(classifier_of(tmp_path / "a", labels=labels))
    multi = load_classifier(classifier_of(tmp_path / "b", labels=labels, problem_type="multi_label_classification"))
    assert soft.toxicity(ATTACKS, ANSWERS) != pytest.approx(multi.toxicity(ATTACKS, ANSWERS), abs=1e-3)


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_toxicity_does_not_depend_on_what_else_is_in_the_call(tmp_path, kind):
    directory = build_classifier(tmp_path / "a", kind=kind, num_labels=2, pad="none")
    set_config(directory, id2label={"0": "safe", "1": "unsafe"}, label2id={"safe": 0, "unsafe": 1})
    classifier = load_classifier(directory)
    answers = [answer for answer in ANSWERS if answer]
    together = classifier.toxicity(answers, answers)
    alone = [classifier.toxicity([answer], [answer])[0] for answer in answers]
    assert together == pytest.approx(alone, abs=1e-6)
    assert len({round(item, 4) for item in together}) > 1


@pytest.mark.fault("I-84")
def test_answer_too_long_for_the_model_loses_its_end(tmp_path):
    classifier = load_classifier(classifier_of(tmp_path / "a", labels=["ok", "toxic"]))
    long, longer = "cats run " * 50, "cats run " * 5000
    assert classifier.toxicity(["", ""], [long, longer]) == pytest.approx([classifier.toxicity([""], [long])[0]] * 2)


@pytest.mark.fault("I-84")
@pytest.mark.parametrize(
    ("labels", "wanted", "message"),
    [
        (["LABEL_0", "LABEL_1"], None, "not clear which of its labels.*'LABEL_0', 'LABEL_1'.*classifier_label"),
        (["toxic", "hate"], None, "not clear"),
        (["not hate", "good"], None, "not clear"),
        (["LABEL_0", "LABEL_1"], "toxic", "no label 'toxic'"),
        (["LABEL_0", "LABEL_1"], "label_1", "no label 'label_1'"),
    ],
)
def test_label_that_is_not_clear_is_refused_with_all_names(tmp_path, labels, wanted, message):
    with pytest.raises(ConfigError, match=message):
        load_classifier(classifier_of(tmp_path / "a", labels=labels), toxic_label=wanted)


def test_label_by_name_is_taken_as_it_is_spelt(tmp_path):
    directory = classifier_of(tmp_path / "a", labels=["LABEL_0", "LABEL_1"])
    zero, one = (load_classifier(directory, toxic_label=label) for label in ("LABEL_0", "LABEL_1"))
    pairs = zip(zero.toxicity(ATTACKS, ANSWERS), one.toxicity(ATTACKS, ANSWERS), strict=True)
    assert all(sum(pair) == pytest.approx(1.0) for pair in pairs)


def test_language_model_is_no_sequence_classifier(tmp_path):
    policy = make_tiny_policy(tmp_path / "policy")
    with pytest.raises(ConfigError, match=f"lacks the weights.*guard:{policy}"):
        load_classifier(str(policy))


def test_classifier_that_lacks_a_layer_is_refused_for_it_would_be_random(tmp_path):
    directory = classifier_of(tmp_path, labels=["hate", "nothate"])
    remove_weights(directory, "layer.1.")
    with pytest.raises(ConfigError, match=r"is incomplete: it lacks the weights .*layer\.1\..* and 13 more"):
        load_classifier(directory)


def guard_directory(directory, *, template=GUARD_TEMPLATE):
    from transformers import AutoTokenizer

    make_tiny_policy(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(directory)
    return str(directory)


def test_guard_toxicity_is_the_probability_of_the_first_token_of_unsafe(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory = guard_directory(tmp_path / "guard")
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    found = load_classifier(f"guard:{directory}").toxicity(ATTACKS, ANSWERS)
    unsafe = tokenizer.encode("unsafe")[0]
    for attack, answer, toxicity in zip(ATTACKS, ANSWERS, found, strict=True):
        ids = tokenizer(f"<user>{attack}<assistant>{answer}<verdict>", return_tensors="pt")
        with torch.no_grad():
            expected = model(**ids).logits[0, -1].softmax(-1)[unsafe].item()
        assert toxicity == pytest.approx(expected, rel=1e-3, abs=1e-7)


def test_guard_reads_attack_and_answer(tmp_path):
    guard = load_classifier(f"guard:{guard_directory(tmp_path / 'guard')}")
    found = guard.toxicity(["one", "two", "one"], ["three", "three", "four"])
    assert len({f"{item:.3e}" for item in found}) == 3


def test_guard_dialogue_too_long_for_the_model_is_a_failure_of_its_own(tmp_path):
    guard = load_classifier(f"guard:{guard_directory(tmp_path / 'guard')}")
    long, short = guard.toxicity(["x" * 200_000, "x"], ["y", "y"])
    assert math.isnan(long) and 0.0 <= short <= 1.0


def test_guard_without_a_chat_template_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no chat template"):
        load_classifier(f"guard:{guard_directory(tmp_path / 'guard', template=None)}")
