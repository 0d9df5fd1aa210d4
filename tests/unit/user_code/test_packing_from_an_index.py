"""Packing from a private index: a real HTTP server that wants a login, which is stored nowhere."""

from __future__ import annotations

import base64
import http.server
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.support.wheels import make_wheel

from retrofill.errors import UserError
from retrofill_core.settings import Settings
from retrofill_core.user_code.packing import pack

LOGIN, SECRET = "me:hunter2-hunter2", "hunter2"


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder to who has the login."""

    def do_GET(self) -> None:
        if self.headers["authorization"] == f"Basic {base64.b64encode(LOGIN.encode()).decode()}":
            super().do_GET()
        else:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="index"')
            self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    make_wheel(tmp_path / "index" / "simple" / "greeting", "greeting", "1.0", "")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path / "index")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("PEX_ROOT", str(tmp_path / "pex"))
    # Only the private index.
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    return Settings(home=tmp_path / "home", code_store=tmp_path / "store")


@pytest.fixture
def requirements(tmp_path: Path) -> Path:
    file = tmp_path / "requirements.txt"
    file.write_text("greeting==1.0\n")
    return file


def shows_secret(store: Path) -> list[str]:
    """The stored files, and files in them, with the password."""
    found = [path.name for path in store.iterdir() if SECRET.encode() in path.read_bytes()]
    for path in store.glob("*.pex"):
        with zipfile.ZipFile(path) as packed:
            found += [name for name in packed.namelist() if SECRET.encode() in packed.read(name)]
    return found


def test_a_login_of_pips_configuration_is_used_and_not_stored(
    settings: Settings, requirements: Path, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = http://{LOGIN}@127.0.0.1:{port}/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    made = pack(settings, requirements)
    assert (tmp_path / "store" / f"{made.sha256}.pex").exists()
    assert shows_secret(tmp_path / "store") == []


@pytest.mark.long
def test_one_in_the_address_of_a_package_is_refused(
    settings: Settings, requirements: Path, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGIN", LOGIN)
    wheel = f"127.0.0.1:{port}/simple/greeting/greeting-1.0-py3-none-any.whl"
    # pip replaces the variable.
    requirements.write_text(f"greeting @ http://${{LOGIN}}@{wheel}\n")
    with pytest.raises(
        UserError, match=r"requirements\.txt has an address with a login, which would be stored with"
    ) as e:
        pack(settings, requirements)
    assert SECRET not in str(e.value)
    assert not (tmp_path / "store").exists()
    (tmp_path / ".netrc").write_text(f"machine 127.0.0.1 login me password {LOGIN.partition(':')[2]}\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    requirements.write_text(f"greeting @ http://{wheel}\n")
    pack(settings, requirements)
    assert shows_secret(tmp_path / "store") == []


@pytest.mark.long
def test_one_that_is_refused_is_told_without_it(
    settings: Settings, requirements: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"http://{LOGIN}-other@127.0.0.1:{port}/simple")
    with pytest.raises(UserError, match=r"satisfies the requirement greeting==1\.0") as e:
        pack(settings, requirements)
    log = Path(str(e.value).partition("pip's output is in ")[2])
    assert SECRET not in f"{e.value} {log.read_text()}"
    log.unlink()
