package grpc_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/testenv"
	messagingv1 "waitlist.internal/proto/gen/waitlist/messaging/v1"
	"waitlist.internal/services/messaging"
	"waitlist.internal/services/messaging/grpc"
	"waitlist.internal/services/messaging/postgres"
	"waitlist.internal/services/messaging/templates"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestCheckTemplates(t *testing.T) {
	t.Parallel()
	const owner, other = "0193d4a2-5c1e-7a41-8000-00000000000a", "0193d4a2-5c1e-7a41-8000-00000000000b"
	store := postgres.NewTemplates(testenv.Migrated(t, messaging.Name, 2, postgres.Migrations), func() {})
	insert := func(ownerID string, kind templates.Type) string {
		t.Helper()
		id := uuid.Must(uuid.NewV7()).String()
		tmpl := templates.Template{ID: id, OwnerID: ownerID, Type: kind, Text: "x"}
		if err := store.InsertTemplate(t.Context(), tmpl, 0, audit.Entry{}); err != nil {
			t.Fatal(err)
		}
		return id
	}
	ref := func(id string, kind templates.Type) *messagingv1.TemplateRef {
		return &messagingv1.TemplateRef{TemplateId: id, TemplateType: string(kind)}
	}
	const confirmation, offboarding = templates.Confirmation, templates.Offboarding
	mine, bye, theirs := insert(owner, confirmation), insert(owner, offboarding), insert(other, confirmation)
	good := []*messagingv1.TemplateRef{ref(mine, confirmation), ref(bye, offboarding)}
	bad := []*messagingv1.TemplateRef{
		ref(mine, offboarding), ref(bye, confirmation), ref(bye, ""), ref(theirs, confirmation), ref(uuid.NewString(), confirmation),
		ref("", confirmation), ref("x", confirmation),
		// A template has one spelling of its id, so that its deletion finds every use of it.
		ref(strings.ToUpper(mine), confirmation), ref(strings.ReplaceAll(mine, "-", ""), confirmation), ref("{"+mine+"}", confirmation),
		ref("urn:uuid:"+mine, confirmation),
	}
	srv := grpc.NewServer(nil, templates.New(store, 0, time.Now))
	check := func(refs ...*messagingv1.TemplateRef) []*messagingv1.TemplateRef {
		t.Helper()
		res, err := srv.CheckTemplates(t.Context(), &messagingv1.CheckTemplatesRequest{OwnerId: owner, Templates: refs})
		if err != nil {
			t.Fatal(err)
		}
		return res.GetUnknown()
	}
	if unknown := check(good...); len(unknown) != 0 {
		t.Errorf("unknown: %v", unknown)
	}
	if unknown := check(); len(unknown) != 0 {
		t.Errorf("unknown of none: %v", unknown)
	}
	unknown := check(append(good, bad...)...)
	if len(unknown) != len(bad) {
		t.Fatalf("unknown: %v", unknown)
	}
	for i, u := range unknown {
		if u.GetTemplateId() != bad[i].GetTemplateId() || u.GetTemplateType() != bad[i].GetTemplateType() {
			t.Errorf("%v, want %v", u, bad[i])
		}
	}
}
