"""Gives schemathesis accounts of the suite, and a stricter check.

An operation that takes its own account or waitlist away gets one that nobody
else needs. Identifiers that schemathesis made up would mostly not be found: a
half of them is replaced by those of things that are there.
"""

import itertools
import os
import random
import re

import requests
import schemathesis
from hypothesis import strategies as st
from schemathesis.specs.openapi import checks

API = os.environ["SCHEMATHESIS_API"]
PASSWORD = "correct horse battery"

# What a pattern in the document would say too narrowly: the server takes domains in
# other scripts, trims, and counts bytes. Formats of these names exist here only.
LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,20}[A-Za-z0-9])?"
DOMAIN = rf"({LABEL}\.){{1,3}}[A-Za-z]{{2,12}}"
REST = "([/?#]([!$&-;=?-Z_a-z~]|%[0-9A-F]{2}){0,40})?"
TEXT = st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"])


def regex(pattern):
    return st.from_regex(pattern, fullmatch=True, alphabet=st.characters(codec="ascii"))


def text(least, most):
    return st.text(TEXT, min_size=least, max_size=most).filter(lambda s: len(s.strip()) >= least)


domains = regex(DOMAIN) | st.sampled_from(["münchen.example", "例え.example", "xn--mnchen-3ya.example"])
locals_ = regex(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}(\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}){0,2}")
FORMATS = {
    "suite-email": st.builds("{}@{}".format, locals_, domains),
    "suite-domain": domains,
    "suite-web": st.just("") | regex(f"[hH]ttps?://{DOMAIN}(:[1-9][0-9]{{0,3}})?{REST}") | st.just("http://192.0.2.1/a"),
    "suite-https": st.just("") | regex(f"[hH]ttps://{DOMAIN}(:[1-9][0-9]{{0,3}})?{REST}"),
    "suite-channel": st.just("") | regex(f"https://{DOMAIN}(:[1-9][0-9]{{0,3}})?{REST}") | st.just("https://1.1.1.1/a"),
    "suite-text": text(1, 150),
    "suite-password": text(8, 200),
    "suite-zone": st.sampled_from(["", "UTC", "Europe/Berlin", "America/New_York"]),
}
for name, strategy in FORMATS.items():
    schemathesis.openapi.format(name, strategy)
PROPERTIES = {
    "email": "suite-email",
    "domain": "suite-domain",
    "allowed_email_domains": "suite-domain",
    "hero_image_url": "suite-web",
    "redirect_url": "suite-https",
    "logo_url": "suite-https",
    "webhook_url": "suite-channel",
    "slack_webhook_url": "suite-channel",
    "discord_webhook_url": "suite-channel",
    "subject": "suite-text",
    "subject_template": "suite-text",
    "label": "suite-text",
    "options": "suite-text",
    "timezone": "suite-zone",
}


# Unusual values that the server takes, so the document must.
URLS = ("", "hTTps://münchen.example:8443/a\N{NO-BREAK SPACE}b", "https://1.1.1.1?a", "https://[2606:4700::1111]/", "https://a.example")
SAMPLES = {
    "suite-email": (" Ada@Example.COM ", "a.b+c@例え。example", "a@münchen．example\t"),
    "suite-domain": ("例え.example", "münchen｡example", "a.b.example"),
    "suite-web": (*URLS, "http://a"),
    "suite-https": URLS,
    "suite-channel": URLS,
    "suite-text": ("a", " ä ", "日本語"),
    "suite-password": ("12345678", "пароль!", "éèàç"),
    "suite-zone": (),
}


def describe(schema, name):
    """Names the format in place of the pattern, which says less."""
    pattern = schema.pop("pattern", "")
    for sample in SAMPLES[name]:
        assert re.search(pattern, sample), f"{pattern} refuses {sample}"
    schema["format"] = name


@schemathesis.hook
def before_load_schema(ctx, raw_schema):
    schemas = raw_schema["components"]["schemas"]
    describe(schemas["NewPassword"], "suite-password")
    describe(schemas["WaitlistName"], "suite-text")

    def name_formats(node):
        if isinstance(node, list):
            for one in node:
                name_formats(one)
        if not isinstance(node, dict):
            return
        for name, schema in (node.get("properties") or {}).items():
            if name not in PROPERTIES or not isinstance(schema, dict):
                continue
            target = schema.get("items", schema)
            if "string" in target.get("type", ()) and "enum" not in target:
                describe(target, PROPERTIES[name])
        for one in node.values():
            name_formats(one)

    name_formats(raw_schema["components"]["requestBodies"])
    for name, schema in schemas.items():
        if name.endswith("Input"):
            name_formats(schema)
    for path in raw_schema["paths"].values():
        for method in path.values():
            if isinstance(method, dict):
                name_formats(method.get("requestBody"))


# These end the account, its credentials or its trial.
DESTRUCTIVE = {"deleteAccount", "regenerateApiKey", "changePassword", "cancelSubscription", "checkout", "startTrial"}

numbers = itertools.count()
fresh = random.Random(1)


def post(path, body, headers=None):
    answer = requests.post(API + path, json=body, headers=headers, timeout=30)
    answer.raise_for_status()
    return answer.json()


class Owner:
    """An account on its Pro trial, with one of everything that a path can name."""

    def __init__(self):
        self.email = f"owner{next(numbers)}.{os.getpid()}@example.com"
        self.key = post("/auth/register", {"email": self.email, "password": PASSWORD})["api_key"]

    def login(self):
        """From an address of its own: made-up logins fail, and a hundred of them lock theirs."""
        source = {"X-Forwarded-For": "192.0.2.1"}
        return post("/auth/login", {"email": self.email, "password": PASSWORD}, source)["id_token"]

    def waitlist(self):
        return post("/waitlists", {"name": "Launch"}, {"x-api-key": self.key})["waitlist_id"]


owner = Owner()
token = owner.login()
waitlist = owner.waitlist()
person = "ada@example.com"
post(f"/public/waitlists/{waitlist}/signups", {"email": person})
template = post(
    "/templates",
    {"template_type": "signup_confirmation", "subject_template": "Welcome", "text_body_template": "Hello"},
    {"x-api-key": owner.key},
)["template_id"]
post("/domains/verify", {"domain": "mail.example.com"}, {"x-api-key": owner.key})
KNOWN = {"waitlist_id": waitlist, "email": person, "template_id": template, "domain": "mail.example.com"}


@schemathesis.auth(refresh_interval=None)
class Credentials:
    def get(self, case, ctx):
        if operation(case) in DESTRUCTIVE:
            account = Owner()
            return {"Authorization": "Bearer " + account.login()}
        if fresh.random() < 0.5:
            return {"x-api-key": owner.key}
        return {"Authorization": "Bearer " + token}

    def set(self, case, data, ctx):
        case.headers.update(data)


def operation(case):
    return case.operation.definition.raw.get("operationId", "")


@schemathesis.hook
def before_call(ctx, case, kwargs):
    meta = case.meta
    if meta is None or meta.phase.name.value == "stateful" or fresh.random() < 0.1:
        return
    part = meta.components.get(schemathesis.core.parameters.ParameterLocation.PATH)
    if part is not None and not part.mode.is_positive:
        return
    for name in case.path_parameters or {}:
        if name not in KNOWN:
            continue
        case.path_parameters[name] = KNOWN[name]
        if operation(case) == "deleteWaitlist":
            case.path_parameters[name] = owner.waitlist()


# What no schema can say: the fields whose values are right or wrong by what is stored.
STATE = {
    "creditSignup": {"credit"},  # whether the signup has a referrer
    "changePassword": {"current_password"},
    "createSignup": {"custom_answers", "timezone"},  # the questions of the waitlist, the time zones of the server
    "createWaitlist": {"email_templates", "custom_questions"},  # the owner's templates; ids that differ
    "updateWaitlist": {"email_templates", "custom_questions"},
    "updateTemplate": {"html_body_template", "template_type"},  # one body must remain, and suit the type
    "listSignups": {"last_key"},  # handed out by an earlier page
    "listAuditEntries": {"last_key"},
    "inviteMember": {"email"},  # not the owner's own
    "previewPlan": {"subscription"},
    "cancelSubscription": {"subscription"},
    "openPortal": {"customer"},
    "unsubscribe": {"email", "token"},  # in the query of the form, in the body of JSON
}


@schemathesis.check
def valid_data_is_not_invalid(ctx, response, case):
    """What the document allows is not refused with VALIDATION_ERROR or INVALID_BODY."""
    if case.meta is None or not case.meta.generation.mode.is_positive or response.status_code != 400:
        return
    answer = response.json()
    if answer["error_code"] not in ("VALIDATION_ERROR", "INVALID_BODY"):
        return
    fields = {re.split(r"[.\[]", e["field"].removeprefix("settings."))[0] for e in answer.get("errors", [])}
    assert fields and fields <= STATE.get(operation(case), set()), response.text


# schemathesis derives the format email from the field's name and takes addresses that match the pattern for wrong ones.
DERIVED = {"register", "forgotPassword"}
# A filled honeypot is answered before any other field is read, and names and the phone
# number are ignored, whatever they are, while the waitlist's form hides them.
IGNORED = {"website", "first_name", "last_name", "phone"}


@schemathesis.check
def invalid_data_is_refused(ctx, response, case):
    """What the document forbids is refused, unless the contract has it ignored."""
    if operation(case) in DERIVED:
        return
    if operation(case) == "createSignup" and isinstance(case.body, dict) and IGNORED & case.body.keys():
        return
    if "" in (case.query or {}).values():  # an empty query parameter is an absent one
        return
    checks.negative_data_rejection(ctx, response, case)
