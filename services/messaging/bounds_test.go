package messaging_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/messaging/mails"
)

// declared returns the kinds that the package declares.
func declared(t *testing.T) (kinds []mails.Kind) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "mails/mails.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			v, ok := s.(*ast.ValueSpec)
			if typ, named := v.Type.(*ast.Ident); !ok || !named || typ.Name != "Kind" {
				continue
			}
			value, ok := v.Values[0].(*ast.BasicLit)
			if !ok {
				t.Fatalf("%s is no literal", v.Names[0].Name)
			}
			kind, err := strconv.Unquote(value.Value)
			if err != nil {
				t.Fatal(err)
			}
			kinds = append(kinds, mails.Kind(kind))
		}
	}
	return kinds
}

// accountEvents returns, by kind, the event that asks for a mail to an account's address.
func accountEvents(account, email string) map[mails.Kind]*eventv1.Event {
	end := timestamppb.New(time.Now().Add(time.Hour))
	changed := func(c eventv1.CredentialChanged_Credential) *eventv1.Event {
		return &eventv1.Event{Payload: &eventv1.Event_CredentialChanged{CredentialChanged: &eventv1.CredentialChanged{
			AccountId: account, Email: email, Credential: c,
		}}}
	}
	return map[mails.Kind]*eventv1.Event{
		mails.AccountVerification: {Payload: &eventv1.Event_AccountVerificationRequested{
			AccountVerificationRequested: &eventv1.AccountVerificationRequested{AccountId: account, Email: email, Cycle: 1, ExpiresAt: end},
		}},
		mails.PasswordReset: {Payload: &eventv1.Event_PasswordResetRequested{
			PasswordResetRequested: &eventv1.PasswordResetRequested{AccountId: account, Email: email, Generation: 1, ExpiresAt: end},
		}},
		mails.PasswordChanged:   changed(eventv1.CredentialChanged_CREDENTIAL_PASSWORD),
		mails.PasswordRecovered: changed(eventv1.CredentialChanged_CREDENTIAL_PASSWORD_RESET),
		mails.APIKeyChanged:     changed(eventv1.CredentialChanged_CREDENTIAL_API_KEY),
		mails.TeamInvite: {Payload: &eventv1.Event_TeamMemberInvited{TeamMemberInvited: &eventv1.TeamMemberInvited{
			AccountId: account, OwnerEmail: "owner@example.com", Email: email, Role: "viewer",
		}}},
		mails.TrialEnding: {Payload: &eventv1.Event_TrialEnding{TrialEnding: &eventv1.TrialEnding{
			AccountId: account, Email: email, EndsAt: end,
		}}},
	}
}

// account returns the id of the i-th account.
func account(i int64) string { return fmt.Sprintf("0197f0c4-6d0e-7cc1-a2a3-%012d", i) }

// signupEvents returns, by kind, the event that asks for a mail or text message to a signup.
func signupEvents(number int64, email string) map[mails.Kind]*eventv1.Event {
	created := func(verify bool) *eventv1.Event {
		ev := createdEvent(verify, !verify)
		ev.GetSignupCreated().Number, ev.GetSignupCreated().Email = number, email
		return ev
	}
	credited := func(notify, sms bool, milestone int64) *eventv1.Event {
		ev := creditedEvent(notify, sms, milestone)
		ev.GetReferralCredited().Number = number
		return ev
	}
	removed := removedEvent(eventv1.RemovalReason_REMOVAL_REASON_ADMIN, true)
	removed.GetSignupRemoved().Number, removed.GetSignupRemoved().Email = number, email
	return map[mails.Kind]*eventv1.Event{
		mails.SignupVerification:   created(true),
		mails.SignupConfirmation:   created(false),
		mails.ReferralMilestone:    credited(false, false, 5),
		mails.Offboarding:          removed,
		mails.ReferralNotification: credited(true, false, 0),
		mails.ReferralSMS:          credited(false, true, 0),
		mails.SignupLink:           linkEvent(number),
	}
}

// TestEveryMailIsBounded drives every kind of mail to one person, under a new address and from another account or signup
// each time, to the bound that docs/mail.md names. Somebody else still gets theirs, and so does the person that of
// every other kind.
func TestEveryMailIsBounded(t *testing.T) {
	t.Parallel()
	const most = 3
	bounds := map[mails.Kind]int{
		mails.PasswordReset: mails.ResetsPerHour, mails.PasswordChanged: mails.NoticesPerDay,
		mails.PasswordRecovered: mails.NoticesPerDay, mails.APIKeyChanged: mails.NoticesPerDay,
		mails.TrialEnding: mails.NoticesPerDay,
	}
	docs, err := os.ReadFile("../../docs/mail.md")
	if err != nil {
		t.Fatal(err)
	}
	events := func(i int64, email string) map[mails.Kind]*eventv1.Event {
		all := signupEvents(i, email)
		maps.Copy(all, accountEvents(account(i), email))
		return all
	}
	kinds := declared(t)
	if all := events(1, "x@example.com"); len(kinds) < len(all) {
		t.Fatalf("%d kinds are declared, %d have events", len(kinds), len(all))
	}
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			if !strings.Contains(string(docs), ": `"+string(kind)+"` |") {
				t.Error("docs/mail.md does not say what bounds this kind")
			}
			w := newWorld(t)
			w.stopClock()
			known := accounts{templateOwner: {Verified: true}}
			w.limits = mails.Limits{
				MailsPerRecipient: most, AsksPerRecipient: most, Accounts: known,
				Texts: &mails.TextLimits{Countries: []string{"DE"}, OnTrial: true, PerPrefix: most},
			}
			bound, ok := bounds[kind]
			if !ok {
				bound = most
			}
			ask := func(i int64, email, phone string, kind mails.Kind) {
				t.Helper()
				known[account(i)] = mails.Account{}
				w.people[i] = &mails.Person{Email: email, Phone: phone, ReferralCount: 5, ReferralToken: "ref"}
				ev := events(i, email)[kind]
				if ev == nil {
					t.Fatalf("no event asks for a mail of this kind: say here how it comes about, and what bounds it")
				}
				w.events(ev)
			}
			n := int64(2 * bound)
			for i := range n {
				ask(i+1, fmt.Sprintf("a.da+%d@gmail.com", i), fmt.Sprintf("+49 151 1234567%d", i%10), kind)
			}
			ask(n+1, "bob@gmail.com", "+49 170 12345678", kind)
			others := int64(0)
			for _, other := range kinds {
				if other != kind && other.Addressed() && other != mails.Offboarding { // owners' mails have one limit together
					others++
					ask(n+1+others, "ada+other@gmail.com", "", other)
				}
			}
			w.start()
			w.ended(int(n + 1 + others))
			count := func(state string, like string) int {
				return w.count(fmt.Sprintf("SELECT count(*) FROM sent_mail WHERE kind = '%s' AND state = '%s' AND error LIKE '%s'", kind, state, like))
			}
			if sent, canceled := count("sent", ""), count("canceled", "%used up"); sent != bound+1 || canceled != bound {
				t.Errorf("%d mails were sent, %d canceled; want %d and one to somebody else: %s", sent, canceled, bound, w.reasons())
			}
			if got := w.count("SELECT count(DISTINCT kind) FROM sent_mail WHERE state = 'sent'"); got != int(others)+1 {
				t.Errorf("of another kind no mail was sent: %s", w.reasons())
			}
		})
	}
}

// TestStrangersUseUpNoResets: whoever asks for resets of many accounts of one mailbox keeps its owner's from nobody, and
// neither does the owner's bound void what was mailed.
func TestStrangersUseUpNoResets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stopClock()
	known := accounts{account(1000): {}, account(1001): {Verified: true}}
	w.limits.Accounts = known
	reset := func(i int64, email string) { w.events(accountEvents(account(i), email)[mails.PasswordReset]) }
	for i := range int64(40) {
		known[account(i)] = mails.Account{}
		reset(i, fmt.Sprintf("ada+%d@gmail.com", i))
	}
	w.start()
	w.ended(40)
	for range mails.ResetsPerHour + 1 {
		reset(1000, "ada@gmail.com")          // the mailbox's own address, whether it is verified
		reset(1001, "ada.lovelace@gmail.com") // a verified one
	}
	w.ended(40 + 2*(mails.ResetsPerHour+1))
	got := map[string]int{}
	for _, m := range w.mails {
		if strings.Contains(m.To, "+") {
			m.To = "others"
		}
		got[m.To]++
	}
	for to, n := range got {
		if n != mails.ResetsPerHour {
			t.Errorf("%s got %d mails", to, n)
		}
	}
	if len(got) != 3 {
		t.Errorf("mails to %v", got)
	}
}
