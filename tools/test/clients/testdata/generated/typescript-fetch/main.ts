import assert from "node:assert/strict";
import {AdminApi, AuthApi, Configuration, PublicApi, ResponseError, WaitlistsApi} from "./client/index.js";
import {ModelErrorFromJSON} from "./client/index.js";

const basePath = process.env.WAITLIST_URL!;
const account = await new AuthApi(new Configuration({basePath})).register({
	registerRequest: {email: "typescript@example.com", password: "correct horse battery"},
});
const configuration = new Configuration({basePath, apiKey: account.apiKey});
const waitlists = new WaitlistsApi(configuration), open = new PublicApi(configuration), admin = new AdminApi(configuration);

const {waitlistId} = await waitlists.createWaitlist({createWaitlistRequest: {name: "Launch"}});
assert.deepEqual((await waitlists.listWaitlists()).waitlists.map(w => w.waitlistId), [waitlistId]);
assert.equal((await open.getWaitlistConfig({waitlistId})).status, "open");
await open.createSignup({waitlistId, signupInput: {email: "early@example.com"}});
const ann = await open.createSignup({waitlistId, signupInput: {email: "ann@example.com"}});
assert.equal(ann.position, 2);
await open.createSignup({waitlistId, signupInput: {email: "bob@example.com", referredByToken: ann.referralToken}});
assert.equal((await open.getSignupStatus({waitlistId, email: "ann@example.com"})).position, 1);
const imported = await admin.importSignups({waitlistId, importSignupsRequest: {signups: [{email: "cem@example.com"}]}});
assert.equal(imported.imported, 1);
const emails: string[] = [];
for (let lastKey: string | undefined; ;) {
	const page = await admin.listSignups({waitlistId, limit: 1, lastKey});
	emails.push(...page.signups.map(s => s.email));
	if (page.lastKey === null) break;
	lastKey = page.lastKey;
}
assert.deepEqual(emails, ["ann@example.com", "early@example.com", "bob@example.com", "cem@example.com"]);
const csv = await admin.exportSignups({waitlistId});
assert.match(csv, /^email,first_name/);
assert.equal(csv.split("\r\n").length, 6);

async function refused(call: Promise<unknown>) {
	try {
		await call;
	} catch (e) {
		assert(e instanceof ResponseError, String(e));
		return ModelErrorFromJSON(await e.response.json());
	}
	throw new Error("no error");
}
const missing = await refused(open.getSignupStatus({waitlistId, email: "nobody@example.com"}));
assert(missing.errorCode === "NOT_FOUND" && missing.requestId && missing.error);
const invalid = await refused(open.createSignup({waitlistId, signupInput: {email: "nowhere"}}));
assert(invalid.errorCode === "VALIDATION_ERROR" && invalid.errors![0].field === "email");
