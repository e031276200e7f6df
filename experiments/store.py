"""Opening a tracking store, and proving before anything starts that it takes what will be filed.

The surprise: a SQLite file is made under another name and linked into place when it is whole. MLflow needs seconds for
its tables, two programs that make them in one file break each other, and a file whose maker was killed half-way never
opens again.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse
from urllib.request import url2pathname

from experiments import columns
from experiments.errors import ConfigError, StorageError
from experiments.filing import Shelf, writing
from experiments.record import now

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlflow.tracking import MlflowClient

DATABASE = "mlflow.db"
SQLITE = "sqlite:///"
OPENED = "opened_utc"
MANNERS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
"""MLflow retries a dead server for minutes, and reports its use to its makers. What the environment says goes first."""


def open_shelf(directory: Path, study: str, uri: str | None) -> Shelf:
    """The runs of `study`; `uri` None: SQLite in `directory`. Raises ConfigError for a store that takes no writing."""
    uri, database = place(directory, uri)
    with opening(uri), writing(directory):
        from mlflow.tracking import MlflowClient  # noqa: PLC0415 - seconds of imports, only where tracking is on

        if database and not database.exists():
            create(database)
        client = MlflowClient(uri)
        return Shelf(client, experiment(client, study, database), directory / study)


def look(directory: Path, uri: str | None) -> str:
    """What `open_shelf` would find or make, in words; nothing is made. Raises ConfigError as it would."""
    uri, database = place(directory, uri)
    with opening(uri):
        if database and not os.access(database if database.exists() else database.parent, os.W_OK):
            raise PermissionError(f"{database} is not writable")
        if database and not database.exists():
            return f"{uri}, which the first run makes"
        from mlflow.tracking import MlflowClient  # noqa: PLC0415 - as above

        MlflowClient(uri).search_experiments(max_results=1)
    return uri


def place(directory: Path, uri: str | None) -> tuple[str, Path | None]:
    """The store's address, and its file where it is one."""
    uri = uri or f"{SQLITE}{directory.absolute() / DATABASE}"
    return uri, Path(uri.removeprefix(SQLITE)).absolute() if uri.startswith(SQLITE) else None


@contextlib.contextmanager
def opening(uri: str) -> Iterator[None]:
    """With MLflow's manners; whatever it raises about a store becomes a ConfigError."""
    for name, value in MANNERS.items():
        os.environ.setdefault(name, value)
    from alembic.util import CommandError  # noqa: PLC0415 - as above
    from mlflow.exceptions import MlflowException  # noqa: PLC0415 - as above
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415 - as above

    try:
        yield
    except (CommandError, MlflowException, SQLAlchemyError, OSError, StorageError, ImportError) as error:
        raise ConfigError("tracking.uri", f"{uri} cannot be opened for writing: {error}") from error


def create(database: Path) -> None:
    """An empty store, or the one that another program made meanwhile."""
    from mlflow.tracking import MlflowClient  # noqa: PLC0415

    aside = database.with_name(f".{database.name}.{os.getpid()}")
    aside.touch()  # where no file can be made, MLflow tries for minutes
    try:
        MlflowClient(f"{SQLITE}{aside}").search_experiments(max_results=1)
        with contextlib.suppress(FileExistsError):
            os.link(aside, database)
    finally:
        aside.unlink(missing_ok=True)


def experiment(client: MlflowClient, study: str, database: Path | None) -> str:
    """Its id. Files lie beside a database; a server knows where it keeps them. Raises what MLflow raises, OSError."""
    found = client.get_experiment_by_name(study)
    beside = (database.parent / "mlartifacts" / study).as_uri() if database else None
    name: str = found.experiment_id if found else client.create_experiment(study, beside)
    client.set_experiment_tag(name, OPENED, now())
    client.set_experiment_tag(name, columns.TAG, columns.state())
    client.set_experiment_tag(name, columns.NOTE, columns.note(name))
    check_writable(client.get_experiment(name).artifact_location)
    return name


def check_writable(location: str) -> None:
    """Raises PermissionError for a local directory that takes no files. Other places are known to their servers."""
    parsed = urlparse(location)
    if parsed.scheme not in ("", "file"):
        return
    path = Path(url2pathname(parsed.path))
    existing = next(place for place in (path, *path.parents) if place.exists())
    if not os.access(existing, os.W_OK):
        raise PermissionError(f"artifacts go to {path}, and {existing} is not writable")
