"""Reasons of plans in words, for people."""

from __future__ import annotations

from ckptgov.model.retention import KeepReason

KEPT_WORDS = {
    KeepReason.LAST: "among the newest that 'last' keeps",
    KeepReason.FIRST: "among the oldest that 'first' keeps",
    KeepReason.WITHIN: "young enough for 'within'",
    KeepReason.HOURLY: "one for each hour",
    KeepReason.DAILY: "one for each day",
    KeepReason.WEEKLY: "one for each week",
    KeepReason.MONTHLY: "one for each month",
    KeepReason.YEARLY: "one for each year",
    KeepReason.EVERY_STEPS: "the first of each stretch of steps",
    KeepReason.EVERY: "the oldest of each stretch of time",
    KeepReason.BEST: "best by a metric",
    KeepReason.RECORDED_BEST: "what the trainer calls its best",
    KeepReason.METRIC_AWAITED: "its metric has yet to come",
    KeepReason.STEPS: "named by the policy's 'steps'",
    KeepReason.TAGS: "carries a tag the policy keeps",
    KeepReason.OLDER_THAN_DETECTION: "old enough to be sure of",
    KeepReason.NO_RULES: "no keep rule is written for it here",
    KeepReason.NEWEST_RESTORABLE: "the newest that restores",
    KeepReason.NEWEST_DURABLE: "the newest on shared storage",
    KeepReason.START_POINT: "a running restart began from it",
    KeepReason.PINNED: "somebody pinned it",
    KeepReason.LEASED: "somebody reads it",
    KeepReason.UNDRAINED: "still to be copied to another tier",
    KeepReason.FLOOR_RESTORABLE: "so many must always stay restorable",
    KeepReason.FLOOR_COPIES: "so many copies must always stay",
    KeepReason.FLOOR_AGE: "too young to go",
    KeepReason.ADOPTION: "its run was met only lately",
    KeepReason.OLD_LINE: "of an earlier line of its run",
    KeepReason.STEPLESS: "carries no step",
    KeepReason.NOT_VERIFIED: "its copy is not verified: verify it first",
    KeepReason.STALE_PROOF: "the copies that would remain were verified too long ago",
    KeepReason.UNREACHABLE: "cannot be reached now",
    KeepReason.OTHER_CATALOG: "another catalog governs the tier",
    KeepReason.BELOW_LIMIT: "the tier is below its limit",
}
"""What a reason means, for whoever reads only how many stay for it."""
