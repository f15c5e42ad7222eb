"""Uses ids of existing objects in half of all requests: random ids almost never match anything.

Not in sequences of requests: there the ids come from earlier responses, and the fuzzer expects to find what it created.
"""

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
# The fuzzer must not lock itself out.
PROTECTED_USERS = {"chief", "me", "admin"}
# HTTP clients resolve these segments and so change the path.
DOT_SEGMENTS = {".", ".."}
# Requests for a collection before its ids are fetched again.
MAX_CACHE_USES = 10
counter, cache = itertools.count(), {}


def existing_ids(collection):
    uses, ids = cache.get(collection, (MAX_CACHE_USES, []))
    if uses >= MAX_CACHE_USES:
        uses, ids = 0, fetch_ids(collection)
    cache[collection] = (uses + 1, ids)
    return ids


def fetch_ids(collection):
    path, field = LISTS[collection]
    request = urllib.request.Request(f"{URL}/api/v1/{path}", headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request) as response:
        ids = [item[field] for item in json.load(response)["items"]]
    return [id for id in ids if id not in PROTECTED_USERS | DOT_SEGMENTS]


@schemathesis.hook
def before_call(context, case, kwargs):
    # A claim without work would wait for up to a minute.
    wait = case.body.get("wait_seconds") if isinstance(case.body, dict) else None
    if case.path == "/api/v1/tasks/claim" and isinstance(wait, (int, float)) and 0 < wait <= 60:
        case.body["wait_seconds"] = 0.05
    # So would a request for events that do not come.
    if case.path == "/api/v1/events" and isinstance(case.query, dict) and str(case.query.get("wait", "0")).isdigit():
        if 0 < int(case.query.get("wait", "0")) <= 60:
            case.query["wait"] = 0
    for name, value in (case.path_parameters or {}).items():
        if isinstance(value, str) and value in DOT_SEGMENTS:
            case.path_parameters[name] = "nothing"
    found = re.match(r"/api/v1/(\w+)/\{(\w+)\}", case.path)
    if not found or found[1] not in LISTS or not case.path_parameters:
        return
    collection, name = found.groups()
    number = next(counter)
    in_sequence = case.meta and case.meta.phase.name == "stateful"
    if not in_sequence and number % 2 == 0 and (ids := existing_ids(collection)):
        case.path_parameters[name] = ids[number // 2 % len(ids)]
    elif collection == "users" and case.path_parameters.get(name) in PROTECTED_USERS:
        case.path_parameters[name] = "nobody"
