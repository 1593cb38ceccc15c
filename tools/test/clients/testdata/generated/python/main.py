import os

from openapi_client import (
    AdminApi, ApiClient, AuthApi, Configuration, CreateWaitlistRequest, ImportSignupsRequest,
    ImportSignupsRequestSignupsInner, PublicApi, RegisterRequest, SignupInput, WaitlistsApi,
)
from openapi_client.exceptions import BadRequestException, NotFoundException

url = os.environ["WAITLIST_URL"]
account = AuthApi(ApiClient(Configuration(host=url))).register(
    RegisterRequest(email="python@example.com", password="correct horse battery"))
client = ApiClient(Configuration(host=url, api_key={"apiKey": account.api_key}))
waitlists, public, admin = WaitlistsApi(client), PublicApi(client), AdminApi(client)

waitlist = waitlists.create_waitlist(CreateWaitlistRequest(name="Launch")).waitlist_id
assert [w.waitlist_id for w in waitlists.list_waitlists().waitlists] == [waitlist]
assert public.get_waitlist_config(waitlist).status == "open"
public.create_signup(waitlist, SignupInput(email="early@example.com"))
ann = public.create_signup(waitlist, SignupInput(email="ann@example.com"))
assert ann.position == 2
public.create_signup(waitlist, SignupInput(email="bob@example.com", referred_by_token=ann.referral_token))
assert public.get_signup_status(waitlist, "ann@example.com").position == 1
assert admin.import_signups(waitlist, ImportSignupsRequest(
    signups=[ImportSignupsRequestSignupsInner(email="cem@example.com")])).imported == 1
emails, last_key = [], None
while True:
    page = admin.list_signups(waitlist, limit=1, last_key=last_key)
    emails += [s.email for s in page.signups]
    last_key = page.last_key
    if last_key is None:
        break
assert emails == ["ann@example.com", "early@example.com", "bob@example.com", "cem@example.com"], emails
export = admin.export_signups(waitlist)
assert export.startswith("email,first_name") and export.count("\r\n") == 5, export
try:
    public.get_signup_status(waitlist, "nobody@example.com")
    raise AssertionError("no error")
except NotFoundException as e:
    assert e.data.error_code == "NOT_FOUND" and e.data.request_id and e.data.error, e
try:
    public.create_signup(waitlist, SignupInput(email="ann@example.com", timezone="Nowhere"))
    raise AssertionError("no error")
except BadRequestException as e:
    assert e.data.error_code == "VALIDATION_ERROR" and e.data.errors[0].var_field == "timezone", e
