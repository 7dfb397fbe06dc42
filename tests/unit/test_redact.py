from __future__ import annotations

import json
import re

import pytest
from devherd.capture.record import serial_in
from devherd.capture.redact import GONE, Redactor
from devherd.config.load import load_bytes
from devherd_generic.manifest import MANIFEST

MAC = "b8:ce:f6:12:34:56"
GUID = "b8ce:f603:0012:3456"
GID = f"fe80:0000:0000:0000:{GUID}"
UUID = "3f8c7a52-9a0e-4b7c-8f0d-1e2d3c4b5a69"


@pytest.mark.parametrize(
    "text",
    [
        "password: hunter2",
        'api_key = "hunter2"',
        '{"auth_token": "hunter2"}',
        "DB_PASSWORD=hunter2 and more",
        "GET https://me:hunter2@example.com/x",
        "Authorization: Bearer hunter2hunter2",
        "-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----",
        "token eyJhbGciOiJIUzI1NiJ9.hunter2.c2lnbmF0dXJl",
    ],
)
def test_a_secret_goes_whatever_it_looks_like(text: str) -> None:
    made = Redactor().text(text)
    assert "hunter2" not in made
    assert GONE in made


def test_what_is_no_secret_stays() -> None:
    text = (
        "0000:81:00.0 vendor 0x10de driver 550.54.15 at 12:30:45 on 2026-01-02\n"
        "sys:/devices/pci0000:00/0000:00:14.0/usb1/1-2/1-2:1.0/tty/ttyACM0\n"
        "the list would pass the kubelet's 4 MiB; c 240:4; 127.0.0.1 ::1 ff:ff:ff:ff:ff:ff 00:00:00:00:00:00\n"
        '{"key": "devices[0].name", "config": {"problems": []}, "verify": true}\n'
    )
    redactor = Redactor()
    assert redactor.text(text) == text
    assert not any(redactor.counts.values())


def test_a_secret_is_found_again_wherever_it_was_said() -> None:
    redactor = Redactor()
    redactor.learn_yaml("devices:\n  - name: x\n    env: {LICENSE_TOKEN: abc-42-xyz}\n")
    assert redactor.text("started with abc-42-xyz") == f"started with {GONE}"


@pytest.mark.parametrize(
    "text",
    [
        "env:\n  - name: DB_PASSWORD\n    value: hunter2\n",
        "tokens: [hunter2, other99]\n",
        "private_key: |\n  hunter2\n  hunter2hunter2\nnext: fine\n",
        "secrets:\n  a: hunter2\nnext: fine\n",
        # Not YAML at all, but what a person sends when asking why it does not work.
        "a: [unclosed\nsecrets:\n  a: hunter2\nnext: fine\n",
    ],
)
def test_secrets_in_configurations_go_in_every_shape(text: str) -> None:
    redactor = Redactor()
    redactor.learn_yaml(text)
    made = redactor.yaml(text)
    assert "hunter2" not in made
    assert ("next: fine" in made) == ("next: fine" in text)


def test_identities_become_others_of_the_same_form_and_stay_together() -> None:
    redactor = Redactor(key=b"k")
    made = redactor.text(f"{MAC} {GUID} {GID} GPU-{UUID} 10.1.2.3 fd00:1:2::3 enxb8cef6123456")
    mac, guid, gid, gpu, ipv4, ipv6, name = made.split()
    assert re.fullmatch(r"02(:[0-9a-f]{2}){5}", mac)
    assert re.fullmatch(r"[0-9a-f]{4}(:[0-9a-f]{4}){3}", guid)
    assert gid == f"fe80:0000:0000:0000:{guid}"
    assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", gpu)
    assert ipv4.startswith("198.18.")
    assert ipv6.startswith("2001:db8:")
    assert re.fullmatch(r"enx[0-9a-f]{12}", name)
    for old in (MAC, GUID, UUID, "10.1.2.3", "fd00:1:2::3", "b8cef6123456"):
        assert old not in made
    assert redactor.text(MAC) == mac
    assert Redactor().text(MAC) != mac


def test_an_infiniband_link_address_keeps_the_relation_to_its_ports_guid() -> None:
    redactor = Redactor()
    made = redactor.text("80:00:02:08:fe:80:00:00:00:00:00:00:b8:ce:f6:03:00:12:34:56")
    assert made[36:].replace(":", "") == redactor.text(GUID).replace(":", "")


def test_names_of_workloads_and_hosts_become_pseudonyms() -> None:
    redactor = Redactor()
    redactor.learn_owner("research/secret-project-0/main")
    redactor.learn_name("rack7-node3", "node")
    made = redactor.text("pod secret-project-0 of research/secret-project-0/main on rack7-node3, not prerack7-node3x")
    assert "secret-project" not in made
    assert "research" not in made
    assert made.count("rack7-node3") == 1
    assert redactor.text("secret-project-0") in redactor.text("research/secret-project-0/main")


def test_serial_numbers_go_from_paths_too() -> None:
    redactor = Redactor()
    redactor.learn_serial("A50285BI\n")
    made = redactor.text("/dev/serial/by-id/usb-FTDI_FT232R_A50285BI-if00-port0")
    assert re.fullmatch(r"/dev/serial/by-id/usb-FTDI_FT232R_SN[0-9A-F]{8}-if00-port0", made)


@pytest.mark.parametrize(
    ("name", "serial"),
    [
        ("usb-FTDI_FT232R_USB_UART_A50285BI-if00-port0", "A50285BI"),
        ("usb-Example_Meter_SN0001-if00", "SN0001"),
        ("usb-Logitech_Unifying_Receiver-event-mouse", ""),
        ("plain", ""),
    ],
)
def test_a_by_id_name_tells_its_serial_number(name: str, serial: str) -> None:
    assert serial_in(name) == serial


def test_data_is_redacted_by_key_and_by_value_and_keeps_its_shape() -> None:
    value = {"env": {"API_TOKEN": "abc", "N": 3}, "n": [1, None, True, MAC], "password": "", "token_ok": True}
    made = Redactor().json(value)
    assert made["env"] == {"API_TOKEN": GONE, "N": 3}
    assert made["n"][:3] == [1, None, True]
    assert made["n"][3] != MAC
    assert (made["password"], made["token_ok"]) == ("", True)
    json.dumps(made)


def test_a_raw_capture_changes_nothing() -> None:
    redactor = Redactor(enabled=False)
    redactor.learn_serial("A50285BI")
    text = f"password: hunter2 {MAC} A50285BI"
    assert (redactor.text(text), redactor.yaml(text), redactor.json({"token": "x"})) == (text, text, {"token": "x"})


@pytest.mark.parametrize(
    "shape", ["env: {LICENSE_TOKEN: %s}", "env:\n  LICENSE_TOKEN: %s", 'env: {"LICENSE_TOKEN": "%s"}']
)
def test_a_redacted_configuration_is_still_one(shape: str) -> None:
    text = "devices:\n  - name: x\n    groups: [{paths: [{path: /dev/x}]}]\n    " + (shape % "hunter2").replace(
        "\n", "\n    "
    )
    redactor = Redactor()
    redactor.learn_yaml(text)
    made = redactor.yaml(text)
    assert "hunter2" not in made
    loaded = load_bytes(made.encode(), "generic.yaml", MANIFEST.config, MANIFEST.validate)
    assert loaded.problems == ()
