"""Half of all requests are about something that is there: what fuzzing invents is almost never the id of anything."""

import itertools
import json
import os
import re
import urllib.request

import schemathesis

URL, TOKEN = os.environ["ADE_URL"], os.environ["ADE_TOKEN"]
LISTS = {
    "tasks": ("tasks", "task_id"),
    "approvals": ("approvals?reviewer=*", "approval_id"),
    "policies": ("policies", "policy_id"),
    "delegations": ("delegations", "delegation_id"),
    "resources": ("resources", "pattern"),
    "agents": ("agents", "agent_id"),
    "users": ("users", "user_id"),
}
# Whoever fuzzes must not put itself out.
ITSELF = {"chief", "me", "admin"}
# What is called so cannot be a part of a path: whoever sends it shortens the path before.
NO_SEGMENTS = {".", ".."}
# How many requests about a noun use what was known before.
STALE_AFTER = 10
numbers, remembered = itertools.count(), {}


def known(noun):
    age, ids = remembered.get(noun, (STALE_AFTER, []))
    if age >= STALE_AFTER:
        age, ids = 0, fetched(noun)
    remembered[noun] = (age + 1, ids)
    return ids


def fetched(noun):
    path, field = LISTS[noun]
    request = urllib.request.Request(f"{URL}/api/v1/{path}", headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request) as answer:
        found = [item[field] for item in json.load(answer)["items"]]
    return [one for one in found if one not in ITSELF | NO_SEGMENTS]


@schemathesis.hook
def before_call(context, case, kwargs):
    # Whoever may wait for work is told soon that there is none.
    wait = case.body.get("wait_seconds") if isinstance(case.body, dict) else None
    if case.path == "/api/v1/tasks/claim" and isinstance(wait, (int, float)) and 0 < wait <= 60:
        case.body["wait_seconds"] = 0.05
    for name, value in (case.path_parameters or {}).items():
        if isinstance(value, str) and value in NO_SEGMENTS:
            case.path_parameters[name] = "nothing"
    found = re.match(r"/api/v1/(\w+)/\{(\w+)\}", case.path)
    if not found or found[1] not in LISTS or not case.path_parameters:
        return
    noun, name = found.groups()
    number = next(numbers)
    if number % 2 == 0 and (ids := known(noun)):
        case.path_parameters[name] = ids[number // 2 % len(ids)]
    elif noun == "users" and case.path_parameters.get(name) in ITSELF:
        case.path_parameters[name] = "nobody"
