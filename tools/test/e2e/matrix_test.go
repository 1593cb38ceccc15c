package e2e

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"

	"github.com/jackc/pgx/v5/pgxpool"
)

var (
	// roles and tiers are the contract's, lowest first.
	roles = []string{"viewer", "admin", "owner"}
	tiers = []string{"basic", "advanced", "pro"}
)

// rank returns the index of a word in a list, or -1.
func rank(word string, in []string) int { return slices.Index(in, word) }

// testMatrix calls every operation that requires credentials in every combination of caller, credential, target, state of
// the owner's subscription, and valid or invalid request. The expected answer follows from the document's access extension
// and the contract's order of checks. The combinations follow from the document as well, so a new operation only needs an
// entry in requestBodies.
func (s *suite) testMatrix(t *testing.T) {
	d := s.deploy(t, map[string]string{"ENFORCE_EMAIL_VERIFICATION": "true"})
	pool, err := pgxpool.New(t.Context(), d.db)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	m := &matrix{deployment: d, pool: pool, client: d.client(t), foreign: &member{owner: d.owner(t), verified: true}}
	m.foreignID = m.attended(t, m.foreign.owner)
	m.furnish(t, m.foreign)
	m.foreign.claim(t, foreignDomain)
	for i, st := range []ownerState{
		{name: "trial", tier: "pro", status: "trialing", trial: true, until: "7 days"},
		{name: "basic", tier: "basic", status: "active"},
		{name: "advanced", tier: "advanced", status: "active"},
		{name: "pro", tier: "pro", status: "active", until: "30 days"},
		{name: "canceling", tier: "pro", status: "canceling", until: "1 day"},
		{name: "trial over", tier: "pro", status: "trialing", trial: true, until: "-1 second", refusal: "TRIAL_EXPIRED"},
		{name: "canceled", tier: "pro", status: "canceling", until: "-2 hours", refusal: "FORBIDDEN"},
		{name: "inactive", tier: "advanced", status: "inactive", refusal: "FORBIDDEN"},
	} {
		t.Run(st.name, func(t *testing.T) { m.run(t, st, i == 0) })
	}
}

// ownerState is a state of an owner's subscription.
type ownerState struct {
	name, tier, status string
	trial              bool
	// until is the end of the period as an interval from now; empty: none.
	until string
	// refusal is the code of the subscription gate; empty: it admits the request.
	refusal string
}

// member is a caller.
type member struct {
	*owner // nil: without credentials
	name   string
	// role is the caller's role in the owner's account; empty: none.
	role     string
	verified bool
	// state is the state of the caller's own account.
	state ownerState
	// template is the id of a template in the caller's account.
	template string
}

// credential is a way to authenticate.
type credential struct {
	name  string
	apply func(Request, *owner) Request
	// scheme is the security scheme that it satisfies; empty: none.
	scheme string
	// rare credentials are only tried on plain targets.
	rare bool
}

// target is the object of a request.
type target struct {
	name string
	// id is the waitlist's id, account the X-Account-Email header, email the address in the path.
	id, account, email string
	// template and domain are path parameters; empty: one of the account's own.
	template, domain string
	// missing and foreign describe the waitlist or the account; nobody describes another path parameter.
	missing, foreign, nobody bool
	// own is set if the request is about the caller's own account.
	own bool
	// plain targets are only tried with a valid request.
	plain bool
}

// bystander is on every waitlist and in the team of every account of the matrix.
const bystander = "bystander@example.com"

// Every account of the matrix has claimed commonDomain, and one has claimed foreignDomain as well.
const commonDomain, foreignDomain = "common.example.com", "foreign.example.com"

// content is the kind of a request's content.
type content string

const (
	good    content = "good"
	head    content = "HEAD"    // a valid request, with HEAD
	invalid content = "invalid" // a field or query parameter out of bounds
	broken  content = "broken"  // not JSON
)

type matrix struct {
	*deployment
	pool      *pgxpool.Pool
	client    *Client
	foreign   *member
	foreignID string
}

// cell is one combination.
type cell struct {
	op     Operation
	who    *member
	cred   credential
	target target
	with   content
	bodies bodies
	// want is the expected status, with the code if it is an error.
	want string
}

// group is the matrix for one state of the owner.
type group struct {
	*matrix
	state  ownerState
	owner  *member
	people []*member
	// id is the owner's waitlist; gone is a deleted one.
	id, gone string
}

// run tries all cells of one state. Cells about the caller's own account depend on the owner's state only if the caller is
// the owner; for other callers they run in the first group only.
func (m *matrix) run(t *testing.T, st ownerState, first bool) {
	g := &group{matrix: m, state: st}
	paying := ownerState{tier: "pro", status: "active"}
	lapsed := ownerState{tier: "pro", status: "inactive", refusal: "FORBIDDEN"}
	// Waitlists must be created before the owner enters the state.
	g.owner = g.person(t, member{name: "owner", role: "owner", verified: true, state: st})
	g.id, g.gone = m.attended(t, g.owner.owner), m.attended(t, g.owner.owner)
	g.owner.Do(t, Delete("/waitlists/"+g.gone).As(g.owner.token)).Want(http.StatusNoContent)
	g.enter(t, g.owner)
	g.people = []*member{
		{name: "nobody"},
		g.enter(t, g.person(t, member{name: "stranger", verified: true, state: paying})),
		g.enter(t, g.person(t, member{name: "unverified admin", role: "admin", state: paying})),
		g.enter(t, g.person(t, member{name: "viewer", role: "viewer", verified: true, state: paying})),
		g.enter(t, g.person(t, member{name: "admin", role: "admin", verified: true, state: paying})),
		g.enter(t, g.person(t, member{name: "lapsed admin", role: "admin", verified: true, state: lapsed})),
		g.owner,
	}
	var differ []string
	n := 0
	// Clean up even if a request that should have been rejected removed something.
	defer func() {
		t.Logf("%d cells", n)
		if differ = slices.DeleteFunc(differ, func(line string) bool { return line == "" }); len(differ) > 0 {
			t.Errorf("%d of %d cells differ:\n%s", len(differ), n, table(differ))
		}
	}()
	for _, op := range m.contract.Operations() {
		if op.Planned || len(op.Schemes) == 0 {
			continue
		}
		var refused, allowed []cell
		for _, c := range g.cells(t, op) {
			switch {
			case !first && c.target.own && c.who != g.owner && c.who.owner != nil && op.Access.Gate != "any":
			case c.want[0] == '2':
				allowed = append(allowed, c)
			default:
				refused = append(refused, c)
			}
		}
		n += len(refused) + len(allowed)
		differ = append(differ, g.refused(t, refused)...)
		differ = append(differ, g.allowed(t, allowed)...)
	}
}

// table aligns the rows that differ, and cuts off long lists.
func table(rows []string) string {
	const most = 80
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "operation\tcaller\tcredential\tabout\trequest\twant\tgot")
	for _, row := range rows[:min(most, len(rows))] {
		fmt.Fprintln(w, row)
	}
	_ = w.Flush()
	if len(rows) > most {
		fmt.Fprintf(&b, "and %d more\n", len(rows)-most)
	}
	return b.String()
}

// cells lists the combinations for one operation.
func (g *group) cells(t *testing.T, op Operation) []cell {
	t.Helper()
	contents := []content{good}
	if op.Method == http.MethodGet {
		contents = append(contents, head)
	}
	b, known := requestBodies()[op.ID]
	if op.HasBody != (b.good != nil) {
		t.Fatalf("%s takes a body: %t; requestBodies has one: %t", op.ID, op.HasBody, b.good != nil)
	}
	if known {
		contents = append(contents, invalid)
	}
	if op.HasBody {
		contents = append(contents, broken)
	}
	targets := g.targets(op)
	var out []cell
	for _, who := range g.people {
		creds := credentials(op)
		if who.owner == nil {
			creds = strangeCredentials()
		}
		for _, cred := range creds {
			for i, about := range targets {
				for _, with := range contents {
					if (cred.rare && (i > 0 || with != good)) || (about.plain && with != good) || (with == head && cred.scheme == "apiKey") {
						continue
					}
					c := cell{op: op, who: who, cred: cred, target: about, with: with, bodies: b}
					c.want = g.expect(t, c)
					out = append(out, c)
				}
			}
		}
	}
	return out
}

// targets lists the possible targets of an operation, the plainest first.
func (g *group) targets(op Operation) []target {
	has := func(name string) bool { return slices.Contains(op.Parameters, name) }
	var out []target
	switch {
	case has("waitlist_id"):
		out = []target{
			{name: "the owner's waitlist", id: g.id},
			{name: "another's waitlist", id: g.foreignID, foreign: true},
			{name: "no waitlist", id: unknownID, missing: true},
			{name: "a deleted waitlist", id: g.gone, missing: true, plain: true},
			{name: "no id", id: "nope", missing: true, plain: true},
		}
	case has("X-Account-Email"):
		out = []target{
			{name: "the owner's account", account: strings.ToUpper(g.owner.email)},
			{name: "another's account", account: g.foreign.email, foreign: true},
			{name: "no account", account: "nobody@example.com", foreign: true},
			{name: "the caller's account", own: true},
		}
	default:
		out = []target{{name: "the caller's account", own: true}}
	}
	for i := range out {
		about := out[i]
		if about.foreign || about.missing {
			about.template, about.domain = unknownID, commonDomain
			out[i] = about
			continue
		}
		for kind, ids := range map[string][]string{
			"template_id": {g.foreign.template, unknownID, "nope"}, "domain": {foreignDomain, "none.example.com", "nope"},
		} {
			for n, id := range ids {
				if !has(kind) {
					continue
				}
				about.name, about.nobody, about.plain = out[i].name+", "+kind+" "+id, true, n > 0
				if about.domain, about.template = "", id; kind == "domain" {
					about.domain, about.template = id, ""
				}
				out = append(out, about)
			}
		}
	}
	if !has("email") {
		return out
	}
	for i := range out {
		out[i].email = bystander
		if about := out[i]; !about.foreign && !about.missing {
			about.name, about.email, about.nobody = about.name+", nobody", "nobody@example.com", true
			out = append(out, about)
		}
	}
	return out
}

// credentials lists the ways in which a caller with an account can authenticate to an operation.
func credentials(op Operation) []credential {
	// inQuery is "bearer" if the operation takes a token in the query; elsewhere it is just another parameter.
	inQuery := ""
	if slices.Contains(op.Parameters, "token") {
		inQuery = "bearer"
	}
	return []credential{
		{name: "token", scheme: "bearer", apply: func(r Request, o *owner) Request { return r.As(o.token) }},
		{name: "key", scheme: "apiKey", apply: func(r Request, o *owner) Request { return r.Key(o.key) }},
		{
			name: "token in the query", scheme: inQuery, rare: inQuery == "",
			apply: func(r Request, o *owner) Request { return r.query("token", o.token) },
		},
		{
			name: "token, bad key", scheme: "bearer", rare: true,
			apply: func(r Request, o *owner) Request { return r.As(o.token).Key("wl_live_x") },
		},
		{name: "bad token, key", rare: true, apply: func(r Request, o *owner) Request { return r.As("x").Key(o.key) }},
		{name: "key as token", rare: true, apply: func(r Request, o *owner) Request { return r.As(o.key) }},
		{name: "token as key", rare: true, apply: func(r Request, o *owner) Request { return r.Key(o.token) }},
		{name: "basic", rare: true, apply: func(r Request, o *owner) Request { return r.With("Authorization", "Basic "+o.token) }},
		{name: "key in the query", rare: true, apply: func(r Request, o *owner) Request { return r.query("token", o.key) }},
		{
			name: "bad token in the query, key", scheme: "apiKey", rare: true,
			apply: func(r Request, o *owner) Request { return r.query("token", "x").Key(o.key) },
		},
		{
			name: "bad token in the query, token", scheme: "bearer", rare: true,
			apply: func(r Request, o *owner) Request { return r.query("token", "x").As(o.token) },
		},
	}
}

// strangeCredentials are credentials that belong to nobody.
func strangeCredentials() []credential {
	return []credential{
		{name: "none", apply: func(r Request, _ *owner) Request { return r }},
		{name: "bad token", rare: true, apply: func(r Request, _ *owner) Request { return r.As("eyJhbGciOiJub25lIn0.e30.") }},
		{name: "bad key", rare: true, apply: func(r Request, _ *owner) Request { return r.Key("wl_live_00000000_0000000000000000") }},
		{name: "bad token in the query", rare: true, apply: func(r Request, _ *owner) Request { return r.query("token", "x") }},
	}
}

// query adds a query parameter.
func (r Request) query(name, value string) Request {
	sep := "?"
	if strings.Contains(r.path, "?") {
		sep = "&"
	}
	r.path += sep + name + "=" + url.QueryEscape(value)
	return r
}

// expect returns the status that the contract requires for a cell, with the code if it is an error.
func (g *group) expect(t *testing.T, c cell) string {
	t.Helper()
	forbidden := func(code string) string { return "403 " + code }
	switch {
	case c.cred.scheme == "":
		return "401 AUTHENTICATION_REQUIRED"
	case !slices.Contains(c.op.Schemes, c.cred.scheme):
		return forbidden("FORBIDDEN")
	case c.target.missing:
		return "404 NOT_FOUND"
	}
	role, account := c.who.role, g.state
	if c.target.own {
		role, account = "owner", c.who.state
	}
	if c.target.foreign || role == "" {
		return forbidden("FORBIDDEN")
	}
	switch c.op.Access.Gate {
	case "subscription":
		if code := gate(role, account, c.who.verified || (role == "owner" && !c.op.Access.Verified)); code != "" {
			return forbidden(code)
		}
	case "any":
		member := c.who.role == "viewer" || c.who.role == "admin"
		if c.who.state.refusal != "" && (!member || gate(c.who.role, g.state, c.who.verified) != "") {
			return forbidden(c.who.state.refusal)
		}
	}
	switch {
	case rank(role, roles) < rank(c.op.Access.Role, roles):
		return forbidden("FORBIDDEN")
	case c.with == broken:
		return "400 INVALID_BODY"
	case c.with == invalid:
		return "400 VALIDATION_ERROR"
	case rank(account.tier, tiers) < rank(c.op.Access.Tier, tiers):
		return forbidden("TIER_REQUIRED")
	case c.target.nobody:
		return "404 NOT_FOUND"
	}
	if want := unpaid(c.op.ID, account); want != "" {
		return want
	}
	success := slices.DeleteFunc(slices.Clone(c.op.Outcomes), func(outcome string) bool { return outcome[0] != '2' })
	if len(success) != 1 {
		t.Fatalf("%s has the successes %v, want exactly one", c.op.ID, success)
	}
	return success[0]
}

// unpaid returns billing's answer to accounts of the matrix, which never paid because their states are set directly. Empty:
// the operation succeeds.
func unpaid(operation string, account ownerState) string {
	switch {
	case operation == "startTrial":
		return "409 CONFLICT"
	case operation == "previewPlan", operation == "openPortal",
		operation == "cancelSubscription" && (account.status != "trialing" || account.refusal != ""):
		return "400 VALIDATION_ERROR"
	}
	return ""
}

// gate returns the answer of the subscription gate, which checks the caller's address, the target account, and members of
// accounts below Pro.
func gate(role string, account ownerState, verified bool) string {
	switch {
	case !verified:
		return "EMAIL_NOT_VERIFIED"
	case account.refusal != "":
		return account.refusal
	case role != "owner" && account.tier != "pro":
		return "TIER_REQUIRED"
	}
	return ""
}

// differs returns the table's row for a cell with an unexpected answer, else "".
func (c cell) differs(got string) string {
	want := c.want
	if c.with == head {
		want, _, _ = strings.Cut(want, " ")
	}
	if got == want {
		return ""
	}
	return strings.Join([]string{c.op.ID, c.who.name, c.cred.name, c.target.name, string(c.with), want, got}, "\t")
}

// refused sends cells that must not change anything, several at a time, and returns the rows of those that differ.
func (g *group) refused(t *testing.T, cells []cell) []string {
	t.Helper()
	before := g.digest(t)
	out := make([]string, len(cells))
	work := make(chan int)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range work {
				got, _ := g.send(t, cells[i])
				out[i] = cells[i].differs(got)
			}
		})
	}
	for i := range cells {
		work <- i
	}
	close(work)
	wg.Wait()
	if g.digest(t) != before {
		out = append(out, cells[0].op.ID+"\ta refused request changed the database\t\t\t\t\t")
	}
	return out
}

// allowed sends cells that must succeed, each on an object of its own if it removes something.
func (g *group) allowed(t *testing.T, cells []cell) []string {
	t.Helper()
	var out []string
	for _, c := range cells {
		switch c.op.ID {
		case "deleteWaitlist":
			c.target.id = g.owner.waitlist(t, nil)
		case "deleteSignup":
			c.target.email = address("leaving")
			g.client.join(t, c.target.id, c.target.email)
		case "removeMember":
			c.target.email = address("leaving")
			g.invite(t, c.who.email, c.target.email, "viewer")
		case "deleteAccount", "checkout", "cancelSubscription", "changePassword":
			c.who = g.enter(t, g.person(t, *c.who))
		case "leaveTeam":
			is := *c.who
			is.verified = true
			c.who = g.enter(t, g.person(t, is))
			g.invite(t, g.foreign.email, c.who.email, "viewer")
		case "endSession":
			other := *c.who.owner
			other.login(t)
			c.target.id = g.client.Do(t, Get("/auth/sessions").As(other.token)).Want(http.StatusOK).Str("sessions.0.id")
		case "deleteTemplate":
			res := g.client.Do(t, newTemplate("blast", nil).As(c.who.token).With("X-Account-Email", c.target.account))
			c.target.template = res.Want(http.StatusCreated).Str("template_id")
		case "deleteDomain":
			c.target.domain = domainName()
			g.verified(t, c.who, func() {
				g.client.Do(t, newDomain(c.target.domain).As(c.who.token).With("X-Account-Email", c.target.account)).Want(http.StatusOK)
			})
		case "resendVerification":
			g.sql(t, "UPDATE account.account SET verify_resends = 0, verify_resent_at = NULL WHERE email = $1", c.who.email)
		}
		got, res := g.send(t, c)
		if c.op.ID == "regenerateApiKey" && res.Status == http.StatusOK {
			c.who.key = res.Str("api_key")
		}
		out = append(out, c.differs(got))
	}
	return out
}

// send sends one cell and returns the outcome.
func (g *group) send(t *testing.T, c cell) (string, *Response) {
	template, domain := c.target.template, c.target.domain
	if has := g.owner; template == "" {
		if c.target.own && c.who.owner != nil {
			has = c.who
		}
		template = has.template
	}
	if domain == "" {
		domain = commonDomain
	}
	path := strings.NewReplacer("{template_id}", template, "{domain}", domain, "{owner_email}", url.PathEscape(g.foreign.email),
		"{session_id}", cmp.Or(c.target.id, unknownID)).Replace(c.op.Path)
	r := NewRequest(c.op.Method, fill(path, c.target.id, url.PathEscape(c.target.email)), nil)
	if c.target.account != "" {
		r = r.With("X-Account-Email", c.target.account)
	}
	switch c.with {
	case good:
		if c.op.HasBody {
			r = r.JSON(c.bodies.good())
		}
	case head:
		r.method = http.MethodHead
	case invalid:
		r = r.Invalid()
		if c.op.HasBody {
			r = r.JSON(c.bodies.invalid)
		}
		for name, value := range c.bodies.query {
			r = r.query(name, value)
		}
	case broken:
		r = r.Raw([]byte("{")).Invalid()
	}
	res, err := g.client.Send(t.Context(), c.cred.apply(r, c.who.owner))
	if res == nil {
		return err.Error(), nil
	}
	res.t = t
	got := strings.TrimSpace(fmt.Sprintf("%d %s", res.Status, res.ErrorCode()))
	if err != nil {
		got += ": " + err.Error()
	}
	if res.Status >= http.StatusInternalServerError {
		got += " after " + res.Took.String()
	}
	return got, res
}

// bodies are the bodies sent to an operation: valid ones that may be sent repeatedly, and invalid ones or queries out of
// bounds.
type bodies struct {
	good    func() any
	invalid any
	query   map[string]string
}

// requestBodies returns the bodies by operation.
func requestBodies() map[string]bodies {
	always := func(body Obj) func() any { return func() any { return body } }
	return map[string]bodies{
		"createWaitlist": {good: always(Obj{"name": "Another"}), invalid: Obj{"name": ""}},
		"updateWaitlist": {good: always(Obj{"settings": Obj{"headline": "Hello"}}), invalid: Obj{"settings": Obj{"headline": 5}}},
		"listSignups":    {query: map[string]string{"limit": "0"}},
		"moveSignup":     {good: always(Obj{"position": 1}), invalid: Obj{"position": 0}},
		"creditSignup":   {good: always(Obj{"credit": true}), invalid: Obj{"credit": false}},
		"importSignups": {
			good:    func() any { return Obj{"signups": []any{Obj{"email": address("imported")}}} },
			invalid: Obj{"signups": []any{5}},
		},
		"changePassword": {
			good:    always(Obj{"current_password": password, "password": password}),
			invalid: Obj{"current_password": password, "password": "short"},
		},
		"listAuditEntries": {query: map[string]string{"limit": "0"}},
		"getAnalytics":     {query: map[string]string{"range": "5d"}},
		"inviteMember":     {good: func() any { return Obj{"email": address("invited")} }, invalid: Obj{"email": "nobody"}},
		"sendBlast":        {good: always(Obj{"subject": "News", "text_body": "Hello"}), invalid: Obj{"subject": 5}},
		"createTemplate": {
			good:    always(Obj{"template_type": "blast", "subject_template": "x", "text_body_template": "x"}),
			invalid: Obj{"template_type": "x"},
		},
		"updateTemplate":          {good: always(Obj{"name": "Another"}), invalid: Obj{"name": 5}},
		"checkout":                {good: always(Obj{"tier": "basic"}), invalid: Obj{"tier": "gold"}},
		"previewPlan":             {good: always(Obj{"tier": "basic"}), invalid: Obj{"tier": "basic", "interval": "daily"}},
		"startDomainVerification": {good: always(Obj{"domain": commonDomain}), invalid: Obj{"domain": "nope"}},
	}
}

// attended creates a waitlist with the bystander on it, whom a friend referred.
func (m *matrix) attended(t *testing.T, o *owner) string {
	t.Helper()
	id := o.waitlist(t, nil)
	friend := o.join(t, id, address("friend")).Str("referral_token")
	o.join(t, id, bystander, Obj{"referred_by_token": friend})
	return id
}

// person registers a caller with a session and a role in the owner's team. The account is on trial until enter.
func (g *group) person(t *testing.T, is member) *member {
	t.Helper()
	is.owner = g.deployment.owner(t)
	g.furnish(t, &is)
	if is.role == "viewer" || is.role == "admin" {
		g.invite(t, g.owner.email, is.email, is.role)
	}
	g.invite(t, is.email, bystander, "viewer")
	return &is
}

// furnish gives an account a template and a domain, and sets whether its address is verified.
func (m *matrix) furnish(t *testing.T, who *member) {
	t.Helper()
	who.template = who.owner.template(t, "blast", nil)
	m.verified(t, who, func() { who.claim(t, commonDomain) })
}

// verified runs do, which needs a verified address.
func (m *matrix) verified(t *testing.T, who *member, do func()) {
	t.Helper()
	m.sql(t, "UPDATE account.account SET email_verified_at = now() WHERE email = $1", who.email)
	do()
	if !who.verified {
		m.sql(t, "UPDATE account.account SET email_verified_at = NULL WHERE email = $1", who.email)
	}
}

// enter puts an account into its state.
func (m *matrix) enter(t *testing.T, who *member) *member {
	t.Helper()
	m.sql(t, `UPDATE account.account SET tier = $2, status = $3, trial = $4, valid_until = now() + nullif($5, '')::interval,
		entitlement_version = entitlement_version + 1 WHERE email = $1`,
		who.email, who.state.tier, who.state.status, who.state.trial, who.state.until)
	return who
}

// invite adds a member to a team directly; invitations are tested elsewhere.
func (m *matrix) invite(t *testing.T, owner, email, role string) {
	t.Helper()
	m.sql(t, `INSERT INTO account.team_member (owner_id, email, role, invited_at)
		SELECT id, $2, $3, now() FROM account.account WHERE email = $1`,
		owner, email, role)
}

func (m *matrix) sql(t *testing.T, statement string, args ...any) {
	t.Helper()
	if tag, err := m.pool.Exec(t.Context(), statement, args...); err != nil || tag.RowsAffected() != 1 {
		t.Fatalf("%s: %v, %v", statement, tag, err)
	}
}

// digest returns a digest of everything that requests could change.
func (m *matrix) digest(t *testing.T) string {
	t.Helper()
	var sum string
	err := m.pool.QueryRow(t.Context(), `SELECT md5(string_agg(line, E'\n' ORDER BY line)) FROM (
		SELECT w::text FROM signup.waitlist w WHERE deleted_at IS NULL
		UNION ALL SELECT s::text FROM signup.waitlist w JOIN signup.signup s ON s.waitlist_id = w.id WHERE deleted_at IS NULL
		UNION ALL SELECT a::text FROM account.account a UNION ALL SELECT m::text FROM account.team_member m
		UNION ALL SELECT t::text FROM messaging.template t JOIN account.account a ON a.id = t.owner_id
		UNION ALL SELECT d.owner_id || d.name || d.created_at FROM messaging.domain d JOIN account.account a ON a.id = d.owner_id
		-- Leave out the columns that payment events change on their own.
		UNION ALL SELECT concat_ws(' ', s.account_id, s.customer_id, s.tier, s.status, s.version)
			FROM billing.subscriber s JOIN account.account a ON a.id = s.account_id
		UNION ALL SELECT b.id::text FROM messaging.blast b JOIN signup.waitlist w ON w.id = b.waitlist_id
			WHERE deleted_at IS NULL) AS row (line)`).Scan(&sum)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}
