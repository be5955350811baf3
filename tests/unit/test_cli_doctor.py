import json

from tbactl.cli.diagnosis import diagnose
from tbactl.cli.main import main


def finding(diagnosis, subject):
    return next(finding for finding in diagnosis.findings if finding.subject == subject)


def fake_proc(tmp_path, *, mounts, available_kib):
    (tmp_path / "self").mkdir(parents=True)
    (tmp_path / "self" / "mounts").write_text(mounts)
    (tmp_path / "meminfo").write_text(f"MemTotal: 9000000 kB\nMemAvailable: {available_kib} kB\n")
    return tmp_path


def test_doctor_prints_findings_and_its_exit_code_says_whether_runs_work(capsys):
    exit_code = main(["doctor", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert exit_code == (0 if document["is_healthy"] else 1)
    assert {"python", "torch", "processor", "memory", "/dev/shm", "devices", "compiler"} <= {
        found["subject"] for found in document["findings"]
    }
    assert main(["doctor"]) == exit_code
    assert "processor" in capsys.readouterr().out


def test_missing_shared_memory_is_an_error_with_advice(tmp_path):
    proc = fake_proc(tmp_path / "proc", mounts="tmpfs / tmpfs rw 0 0\n", available_kib=9_000_000)
    diagnosis = diagnose(shm_root=tmp_path / "none", proc=proc)
    assert finding(diagnosis, "/dev/shm").level == "error"
    assert finding(diagnosis, "/dev/shm").advice
    assert not diagnosis.is_healthy


def test_shared_memory_on_a_disk_is_a_warning(tmp_path):
    mounts = f"tmpfs / tmpfs rw 0 0\nsda {tmp_path} ext4 rw 0 0\n"
    proc = fake_proc(tmp_path / "proc", mounts=mounts, available_kib=9_000_000)
    found = finding(diagnose(shm_root=tmp_path, proc=proc), "/dev/shm")
    assert found.level == "warning"
    assert "ext4" in found.text


def test_little_memory_is_a_warning(tmp_path):
    proc = fake_proc(tmp_path / "proc", mounts="tmpfs / tmpfs rw 0 0\n", available_kib=1_000_000)
    assert finding(diagnose(shm_root=tmp_path, proc=proc), "memory").level == "warning"


def test_missing_packages_and_compiler_are_errors_with_the_way_to_get_them(monkeypatch):
    monkeypatch.setattr("tbactl.cli.diagnosis._version", lambda package: None)
    monkeypatch.setattr("tbactl.cli.diagnosis.shutil.which", lambda name, path=None: None)
    diagnosis = diagnose()
    assert finding(diagnosis, "torch").level == "error"
    assert "pip install" in finding(diagnosis, "torch").advice
    assert finding(diagnosis, "vllm").level == "warning"
    assert finding(diagnosis, "compiler").level == "error"
