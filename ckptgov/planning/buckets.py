"""Calendar buckets: which hour, day, week, month or year of a time zone a moment lies in."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from ckptgov.errors import ConfigError
from ckptgov.model.policy import Calendar

_LATEST_S = 253_402_128_000  # the end of year 9999, less what a zone may add
_SECOND_NS = 10**9


class Buckets:
    """Names the bucket of each moment in one IANA time zone.

    Buckets do not overlap and are in order of time. An hour that comes twice, when clocks are set
    back, is two: its name carries the offset from UTC.
    """

    def __init__(self, timezone: str) -> None:
        """Load the zone.

        Raises:
            ConfigError: this machine knows no zone of this name.
        """
        try:
            self._zone = ZoneInfo(timezone)
        except (KeyError, ValueError, OSError) as error:
            raise ConfigError(
                f"time zone {timezone!r} is not known on this machine",
                hint="IANA names such as Europe/Berlin need the system's or Python's tzdata",
            ) from error
        self.timezone = timezone
        self._moments: dict[int, datetime] = {}

    def name(self, calendar: Calendar, at_ns: int) -> str:
        """The bucket's name, as people write it: ``2026-11-28``, ``2026-W48``, ``2026-11``."""
        moment = self._local(at_ns)
        match calendar:
            case Calendar.HOURLY:
                return moment.strftime("%Y-%m-%d %H:00%z")
            case Calendar.DAILY:
                return f"{moment.year:04}-{moment.month:02}-{moment.day:02}"
            case Calendar.WEEKLY:
                year, week, _ = moment.isocalendar()
                return f"{year:04}-W{week:02}"
            case Calendar.MONTHLY:
                return f"{moment.year:04}-{moment.month:02}"
            case Calendar.YEARLY:
                return f"{moment.year:04}"

    def _local(self, at_ns: int) -> datetime:
        seconds = min(max(at_ns // _SECOND_NS, 86_400), _LATEST_S)
        moment = self._moments.get(seconds)
        if moment is None:
            moment = datetime.fromtimestamp(seconds, self._zone)
            self._moments[seconds] = moment
        return moment
