import pytest

from tbactl.config.hardware import choose_profile, nvidia_devices

NO_PROGRAMS = {"PATH": ""}


def smi(directory, script):
    program = directory / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {"PATH": str(directory)}


@pytest.mark.fault("I-85")
def test_choose_profile_without_a_device_is_cpu(tmp_path):
    choice = choose_profile(None, root=tmp_path, environment=NO_PROGRAMS)
    assert (choice.profile, choice.reason) == ("cpu", "no NVIDIA device found")


def test_choose_profile_asked_for_is_taken_whatever_is_found(tmp_path):
    choice = choose_profile("gpu", root=tmp_path, environment=NO_PROGRAMS)
    assert (choice.profile, choice.reason) == ("gpu", "asked for with --profile")


@pytest.mark.parametrize("device", ["proc/driver/nvidia/gpus/0000:01:00.0", "dev/nvidia0"])
def test_choose_profile_with_a_driver_file_is_gpu(tmp_path, device):
    (tmp_path / device).mkdir(parents=True)
    choice = choose_profile(None, root=tmp_path, environment=NO_PROGRAMS)
    assert (choice.profile, choice.reason) == ("gpu", "1 NVIDIA device found")


def test_control_device_alone_is_no_device(tmp_path):
    (tmp_path / "dev/nvidiactl").mkdir(parents=True)
    assert nvidia_devices(tmp_path, environment=NO_PROGRAMS) == []


@pytest.mark.parametrize("hidden", ["", "-1", " "])
def test_choose_profile_with_hidden_devices_is_cpu(tmp_path, hidden):
    (tmp_path / "dev/nvidia0").mkdir(parents=True)
    choice = choose_profile(None, root=tmp_path, environment={"CUDA_VISIBLE_DEVICES": hidden})
    assert choice.profile == "cpu"
    assert "CUDA_VISIBLE_DEVICES" in choice.reason


def test_nvidia_smi_that_lists_devices_is_believed(tmp_path):
    environment = smi(tmp_path, "echo 'GPU 0: A'; echo 'GPU 1: B'")
    assert len(nvidia_devices(tmp_path, environment=environment)) == 2


def test_nvidia_smi_that_fails_is_no_device(tmp_path):
    assert nvidia_devices(tmp_path, environment=smi(tmp_path, "echo 'no driver'; exit 9")) == []
