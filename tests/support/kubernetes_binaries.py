"""The real kube-apiserver and etcd: of ``KUBEBUILDER_ASSETS`` or the PATH, or built once with Go."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.support.built import built

MODULE, VERSION = "k8s.io/kubernetes", "1.37.2"
ETCD, ETCD_VERSION = "go.etcd.io/etcd/server/v3", "3.7.0"
NAMES = ("kube-apiserver", "etcd")
BUILD_SECONDS = 3600
# Modules that Kubernetes keeps in its own tree are published under other versions.
_STAGED = re.compile(r"^\s*(?:replace )?(\S+) => \./staging/", re.MULTILINE)


@cache
def binaries() -> dict[str, Path]:
    """The programs by name. Skips the test if they are missing and cannot be built."""
    path = os.pathsep.join(filter(None, [os.environ.get("KUBEBUILDER_ASSETS"), os.environ.get("PATH")]))
    found = {name: program for name in NAMES if (program := shutil.which(name, path=path)) is not None}
    if len(found) == len(NAMES):
        return {name: Path(program) for name, program in found.items()}
    folder = built(f"kubernetes-{VERSION}", _build)
    return {name: folder / name for name in NAMES}


def _build(folder: Path) -> None:
    if shutil.which("go") is None:
        pytest.skip("no kube-apiserver and etcd: name their folder in KUBEBUILDER_ASSETS, or install Go to build them")
    draft = folder.with_name(f"{folder.name}.part")
    draft.mkdir(exist_ok=True)
    (draft / "go.mod").write_text("module programs\n")
    about = json.loads(_go(draft, "mod", "download", "-json", f"{MODULE}@v{VERSION}"))
    theirs = Path(about["GoMod"]).read_text()
    (version,) = re.findall(r"^go \S+$", theirs, re.MULTILINE)
    staged = f"v0.{VERSION.partition('.')[2]}"
    replaced = "".join(f"replace {name} => {name} {staged}\n" for name in _STAGED.findall(theirs))
    required = f"require (\n{MODULE} v{VERSION}\n{ETCD} v{ETCD_VERSION}\n)\n"
    (draft / "go.mod").write_text(f"module programs\n{version}\n{required}{replaced}")
    _go(draft, "build", "-mod=mod", "-ldflags=-s -w", "-o", "kube-apiserver", f"{MODULE}/cmd/kube-apiserver")
    _go(draft, "build", "-mod=mod", "-ldflags=-s -w", "-o", "etcd", ETCD)
    draft.rename(folder)


def _go(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["go", *arguments], cwd=folder, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"kube-apiserver and etcd could not be built within {BUILD_SECONDS} s")
    if done.returncode != 0:
        pytest.skip(f"kube-apiserver and etcd could not be built: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout
