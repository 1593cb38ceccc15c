package clients_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	waitlist "waitlist.internal/tools/sdk/go"
)

type object = map[string]any

// TestMCP starts the server as an assistant does, and calls each tool.
func TestMCP(t *testing.T) {
	t.Parallel()
	s := start(t, false)
	program := filepath.Join(t.TempDir(), "mcp")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "waitlist.internal/tools/cmd/mcp")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the server: %v\n%s", err, out)
	}
	without := exec.CommandContext(t.Context(), program)
	without.Env = []string{}
	if out, err := without.CombinedOutput(); err == nil || !strings.Contains(string(out), "WAITLIST_API_KEY") {
		t.Errorf("without a key: %v %s", err, out)
	}
	cmd := exec.Command(program) // the session ends it
	cmd.Env = []string{"WAITLIST_URL=" + s.url, "WAITLIST_API_KEY=" + s.key}
	cmd.Stderr = os.Stderr
	assistant := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	session, err := assistant.Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := session.Close(); err != nil {
			t.Errorf("close the session: %v", err)
		}
	}()

	tools, err := session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range tools.Tools {
		names = append(names, tool.Name)
	}
	want := []string{"create_waitlist", "draft_blast", "list_signups", "list_waitlists", "look_up_signup", "waitlist_stats"}
	if slices.Sort(names); !slices.Equal(names, want) {
		t.Errorf("tools %v", names)
	}
	call := func(name string, in object, out any) (refused string) {
		t.Helper()
		result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: in})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if result.IsError {
			return result.Content[0].(*mcp.TextContent).Text
		}
		raw, err := json.Marshal(result.StructuredContent)
		if err == nil {
			err = json.Unmarshal(raw, out)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return ""
	}

	var made waitlist.ListedWaitlist
	refused := call("create_waitlist", object{"name": "Kites", "settings": object{"referral_boost": 3}}, &made)
	if refused != "" {
		t.Fatal(refused)
	}
	for _, settings := range []object{
		{"hero_image_url": "https://example.com/?a=ann@example.com"},
		{"webhook_url": "https://example.com/"},
		{"appearance": object{"logo_url": "https://example.com/"}},
		{"consent_text": "[Terms](https://example.com/)"},
	} {
		refused := call("create_waitlist", object{"name": "Kites", "settings": settings}, new(object))
		if !strings.Contains(refused, "only the owner sets") {
			t.Errorf("%v: %q", settings, refused)
		}
	}
	for _, email := range []string{"ann@example.com", "bob@example.com", "cleo@example.com"} {
		if _, err := s.owner.SignUp(t.Context(), made.ID, waitlist.NewSignup{Email: email}); err != nil {
			t.Fatal(err)
		}
	}
	var all struct{ Waitlists []waitlist.ListedWaitlist }
	call("list_waitlists", nil, &all)
	if len(all.Waitlists) != 1 || all.Waitlists[0].ID != made.ID {
		t.Errorf("%+v", all)
	}
	var stats waitlist.Stats
	call("waitlist_stats", object{"waitlist_id": made.ID}, &stats)
	if stats.TotalSignups != 3 {
		t.Errorf("%+v", stats)
	}
	var front struct{ Signups []waitlist.Signup }
	call("list_signups", object{"waitlist_id": made.ID, "limit": 2}, &front)
	if len(front.Signups) != 2 || front.Signups[1].Email != "bob@example.com" {
		t.Errorf("%+v", front)
	}
	var place waitlist.Place
	call("look_up_signup", object{"waitlist_id": made.ID, "email": "cleo@example.com"}, &place)
	if place.Position != 3 {
		t.Errorf("%+v", place)
	}
	if _, err := s.owner.ChangeWaitlist(t.Context(), made.ID, "", waitlist.Settings{"hide_position": true}); err != nil {
		t.Fatal(err)
	}
	var hidden object
	call("look_up_signup", object{"waitlist_id": made.ID, "email": "cleo@example.com"}, &hidden)
	if _, shown := hidden["position"]; shown || hidden["total_signups"] != nil || !strings.Contains(fmt.Sprint(hidden["note"]), "hides") {
		t.Errorf("a hidden place: %v", hidden)
	}
	var draft struct {
		ID   string `json:"template_id"`
		Next string `json:"next"`
	}
	refused = call("draft_blast", object{"name": "May", "subject": "News", "text": "Hello {{first_name}}"}, &draft)
	if refused != "" {
		t.Fatal(refused)
	}
	if !strings.Contains(draft.Next, "no placeholders") {
		t.Errorf("the draft with a placeholder: %s", draft.Next)
	}
	if kept, err := s.owner.Template(t.Context(), draft.ID); err != nil || kept.Subject != "News" || kept.Type != "blast" {
		t.Errorf("%+v, %v", kept, err)
	}
	if sent, err := s.owner.Blasts(t.Context(), made.ID); err != nil || len(sent) != 0 {
		t.Errorf("the draft was sent: %+v, %v", sent, err)
	}

	refused = call("look_up_signup", object{"waitlist_id": made.ID, "email": "nobody@example.com"}, new(object))
	if !strings.Contains(refused, "NOT_FOUND") {
		t.Errorf("a stranger: %s", refused)
	}
	if refused = call("create_waitlist", object{"name": ""}, new(object)); !strings.Contains(refused, "name") {
		t.Errorf("without a name: %s", refused)
	}
}
