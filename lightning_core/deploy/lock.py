"""The libraries of an image: what the script had loaded, pinned to what is installed here.

What was installed from a folder, such as this project in a checkout or the user's own package, is built into
a wheel: no index has it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, distributions, packages_distributions
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement

from lightning_core.deploy.deployment import Deployment
from lightning_core.errors import ConfigError

OWN = "agent-lightning-core"
STORES = {"PGPASSWORD": "postgres", "REDISCLI_AUTH": "redis"}
"""The store's variable to the extra with its driver."""


def write_lock(folder: Path, deployment: Deployment, loaded: Iterable[str]) -> None:
    """Write `requirements.txt`, `requirements-local.txt`, `constraints.txt` and wheels to `folder`.

    `loaded` are names of modules. Lines of the user's own `requirements.txt` in this folder are added, for
    what the script loads later. Raises ConfigError if a wheel can't be built.
    """
    installed = {_plain(each.metadata["Name"]): each for each in distributions()}
    tops = {name.partition(".")[0] for name in loaded}
    owners = packages_distributions()
    used = {_plain(name) for top in tops for name in owners.get(top, ())} & installed.keys()
    sources = dict(_sources(installed))
    used |= {name for name, source in sources.items() if _holds(source, tops)}
    heavy = _required_by(installed.get(OWN), "local") - _required_by(installed.get(OWN))
    wheels = {name: _build(folder, sources[name]) for name in sorted((used | {OWN}) & sources.keys())}

    def line(name: str, extra: str = "") -> str:
        wheel = wheels.get(name)
        asked = f"[{extra}]" if extra else ""
        return f"{name}{asked} @ file:///python/{wheel}" if wheel else f"{name}{asked}"

    store = STORES.get(deployment.password, "")
    core = [line(OWN, store), *map(line, _roots((used - heavy) | {OWN}, installed))]
    extras = ",".join(filter(None, [store, "local"]))
    own = Path("requirements.txt")
    theirs = own.read_text().splitlines() if own.is_file() else []
    _write(folder / "requirements.txt", [*core, *theirs])
    _write(folder / "requirements-local.txt", [line(OWN, extras), *_roots(used & heavy, installed)])
    # Without what says for which processor a version was built: an index may have it for another.
    pins = (f"{name}=={each.version.partition('+')[0]}" for name, each in sorted(installed.items()))
    _write(folder / "constraints.txt", [pin for pin in pins if pin.partition("==")[0] not in wheels])


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _roots(names: set[str], installed: Mapping[str, Distribution]) -> list[str]:
    """Those that none of the others requires, or that require one another; without this project's own."""
    needs = {name: _required_by(installed.get(name)) for name in names}
    return [
        name
        for name in sorted(names - {OWN})
        if not any(name in needs[other] and other not in needs[name] for other in names - {name})
    ]


def _required_by(one: Distribution | None, extra: str = "") -> set[str]:
    """What a distribution requires, with an extra."""
    wanted = [Requirement(each) for each in (one.requires or () if one else ())]
    return {_plain(each.name) for each in wanted if not each.marker or each.marker.evaluate({"extra": extra})}


def _sources(installed: Mapping[str, Distribution]) -> Iterable[tuple[str, Path]]:
    """Distributions that were installed from a folder of this machine."""
    for name, each in installed.items():
        said = each.read_text("direct_url.json")
        url = urlsplit(json.loads(said)["url"]) if said else None
        if url is not None and url.scheme == "file" and Path(unquote(url.path)).is_dir():
            yield name, Path(unquote(url.path))


def _holds(source: Path, modules: Iterable[str]) -> bool:
    """Whether one of the loaded modules lies there: the records of an editable install name none."""
    found = (getattr(sys.modules.get(name), "__file__", None) for name in modules)
    paths = [Path(path) for path in found if path is not None]
    return any(path.is_relative_to(source) and "site-packages" not in path.parts for path in paths)


def _build(folder: Path, source: Path) -> str:
    """The file name of a fresh wheel in `folder`."""
    with TemporaryDirectory() as fresh:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", fresh, str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        made = list(Path(fresh).glob("*.whl"))
        if done.returncode or len(made) != 1:
            raise ConfigError(
                f"can't build a wheel of {str(source)!r}, which no index has:\n{done.stderr[-800:]}"
            )
        shutil.copy(made[0], folder)
        return made[0].name


def _write(file: Path, lines: Iterable[str]) -> None:
    file.write_text("".join(f"{line}\n" for line in lines))
