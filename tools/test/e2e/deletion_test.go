package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"waitlist.internal/libs/devservers"
	"waitlist.internal/libs/testenv"
)

// purgeTimeout bounds the purge on a busy machine.
const purgeTimeout = 90 * time.Second

// testDeletion checks that a deleted account or waitlist leaves nothing behind. The purge runs often and keeps ids for one
// second.
func (s *suite) testDeletion(t *testing.T) {
	rdb := testenv.RedisServer(t, devservers.RedisOptions{})
	d := s.deploy(t, map[string]string{"PURGE_EVERY": "100ms", "TOMBSTONE_KEPT": "1s", "REDIS_URL": rdb.URL})
	w := d.warden(t, rdb.URL)
	by := w.bystander(t)
	t.Run("waitlist", func(t *testing.T) {
		v := w.victim(t)
		id := v.lists[0]
		// The friend's address belongs to the account, not to the list.
		v.Do(t, removeMember(v.friend).As(v.token)).Want(http.StatusNoContent)
		v.Do(t, Delete("/waitlists/"+id).As(v.token)).Want(http.StatusNoContent)
		w.unreachable(t, v, id)
		// Answers stored for an Idempotency-Key stay for a day.
		for _, service := range []string{"signup", "messaging"} {
			d.exec(t, "UPDATE "+service+".idempotency_key SET created_at = created_at - interval '25 hours' WHERE key = $1", v.mark)
		}
		// The account's audit trail goes on naming the waitlist and the blast, by their ids.
		w.awaitNothing(t, v, []string{v.mark, id, v.blast}, "signup.audit", "messaging.audit")
		v.Do(t, Get("/waitlists/"+v.lists[1]).As(v.token)).Want(http.StatusOK)
		v.Do(t, Get("/templates/"+v.template).As(v.token)).Want(http.StatusOK)
		v.Do(t, domainStatus(v.domain).As(v.token)).Want(http.StatusOK)
		v.status(t, v.lists[1], v.survivor).Want(http.StatusOK).WantJSON("position", 1)
		v.Do(t, Delete("/auth/me").As(v.token)).Want(http.StatusNoContent)
		w.awaitNothing(t, v, v.traces)
	})
	t.Run("account", func(t *testing.T) {
		v := w.victim(t)
		v.Do(t, Delete("/auth/me").As(v.token)).Want(http.StatusNoContent)
		// After the first purge, recreate the index key, like a replica that finishes building the index only now.
		Await(t, purgeTimeout, "a first purge", func() bool { return d.count(t, v.lists[0]) == 0 })
		if err := w.redis.ZAdd(t.Context(), "queue:{"+v.lists[0]+"}:keys", redis.Z{Score: 1, Member: 1}).Err(); err != nil {
			t.Fatal(err)
		}
		w.unreachable(t, v, v.lists...)
		w.awaitNothing(t, v, v.traces)
	})
	t.Run("beside traffic", func(t *testing.T) {
		v := w.victim(t)
		stop := w.traffic(t, v)
		v.Do(t, Delete("/auth/me").Key(v.key)).Want(http.StatusNoContent)
		w.unreachable(t, v, v.lists...)
		w.awaitNothing(t, v, v.traces)
		stop()
		w.awaitNothing(t, v, v.traces)
	})
	w.unharmed(t, by)
	// This runs last because the program that it restarts ends with it.
	t.Run("interrupted", func(t *testing.T) {
		v := w.victim(t)
		// A lock on this row stops the purge of the waitlist halfway.
		ctx, end := context.WithCancel(t.Context())
		defer end()
		tx, err := w.pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(ctx, "SELECT FROM signup.queue_bucket WHERE waitlist_id = $1 FOR UPDATE", v.lists[0]); err != nil {
			t.Fatal(err)
		}
		v.Do(t, Delete("/auth/me").As(v.token)).Want(http.StatusNoContent)
		Await(t, purgeTimeout, "half a purge", func() bool { return d.count(t, v.lists[0]) == 0 })
		d.server.Kill()
		if err := tx.Rollback(ctx); err != nil {
			t.Fatal(err)
		}
		if left := w.find(t, v, v.traces); len(left) == 0 {
			t.Fatal("the purge finished before the kill")
		}
		d.restart(t)
		w.unreachable(t, v, v.lists...)
		w.awaitNothing(t, v, v.traces)
		w.unharmed(t, by)
	})
}

// warden searches for traces of deleted data.
type warden struct {
	*deployment
	pool  *pgxpool.Pool
	redis *redis.Client
	by    *victim
}

func (d *deployment) warden(t *testing.T, redisURL string) *warden {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), d.db)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	o, err := redis.ParseURL(redisURL)
	if err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(o)
	t.Cleanup(func() { _ = rdb.Close() })
	return &warden{deployment: d, pool: pool, redis: rdb}
}

// victim is an account that has used every feature.
type victim struct {
	*owner
	// mark is a string in everything that was sent to the first list.
	mark string
	// lists are a large waitlist and a small one with survivor on it.
	lists    []string
	survivor string
	// friend is an invited member without an account.
	friend string
	// account is the account's id.
	account string
	// template and domain belong to the account; blast belongs to the first list.
	template, domain, blast string
	// traces are strings that must not be found anywhere; the mark comes first.
	traces []string
}

// indexed is a length at which a waitlist has an index in Redis.
const indexed = 1200

// victim creates an account with every kind of data and checks that all of it can be found.
func (w *warden) victim(t *testing.T) *victim {
	t.Helper()
	mark := strings.ToLower(rand.Text()[:16])
	at := func(name string) string { return name + "@" + mark + ".example.com" }
	v := &victim{owner: w.owner(t), mark: mark, friend: at("friend"), survivor: address("survivor")}
	w.verify(t, v.owner)
	// Data of the account itself.
	v.domain = domainName()
	v.claim(t, v.domain)
	v.template = v.owner.template(t, "offboarding", Obj{"name": v.domain, "html_body_template": v.domain})
	v.lists = []string{
		v.Do(t, Post("/waitlists", Obj{"name": mark, "settings": Obj{
			"headline": mark, "require_email_verification": true, "require_consent": true, "consent_text": mark, "phone_field": "optional",
			"webhook_url": "https://" + mark + ".example.com/hook", "referral_boost": 3, "email_templates": Obj{"offboarding": v.template},
			"custom_questions": []any{question("q", Obj{"type": "text", "options": absent})},
		}}).As(v.token).With("Idempotency-Key", mark)).Want(http.StatusCreated).Str("waitlist_id"),
		v.waitlist(t, nil),
	}
	id := v.lists[0]
	v.join(t, v.lists[1], v.survivor)

	// People with all data that a signup can have.
	person := func(name string, more Obj) *Response {
		return v.join(t, id, at(name), Obj{
			"first_name": mark, "last_name": mark, "phone": "+4912345", "consent": true, "timezone": "Europe/Berlin",
			"utm_source": mark, "utm_medium": mark, "utm_campaign": mark, "utm_term": mark, "utm_content": mark, "custom_answers": Obj{"q": mark},
		}, more)
	}
	ada := person("ada", nil).Str("referral_token")
	for i := range 4 {
		person(fmt.Sprint("friend", i), Obj{"referred_by_token": ada})
	}
	verification := w.server.AwaitMails(t, at("ada"), 1)[0].Token()
	v.Do(t, Post(statusPath(id, at("ada"))+"/verify", Obj{"token": verification})).Want(http.StatusOK)
	unsubscribe := w.unsubscribeToken(t, id, at("friend0"))
	deleteToken := v.Do(t, Post("/public/waitlists/"+id+"/unsubscribe", Obj{"email": at("friend0"), "token": unsubscribe})).
		Want(http.StatusOK).Str("delete_token")
	v.Do(t, Post("/public/waitlists/"+id+"/delete-my-data", Obj{"email": at("friend0"), "token": deleteToken})).Want(http.StatusOK)
	w.server.AwaitMails(t, at("friend1"), 1) // a removal cancels what is still queued
	v.Do(t, Delete("/waitlists/"+id+"/signups/"+at("friend1")).As(v.token)).Want(http.StatusNoContent)
	w.server.AwaitMails(t, at("friend1"), 2)
	v.blast = v.Do(t, newBlast(id, Obj{"subject": mark, "text_body": mark, "html_body": mark}).As(v.token).
		With("Idempotency-Key", mark)).Want(http.StatusOK).Str("blast_id")
	rows := make([]any, indexed)
	for i := range rows {
		rows[i] = Obj{"email": at(fmt.Sprint("imported", i)), "first_name": mark}
	}
	v.Do(t, Post("/waitlists/"+id+"/import", Obj{"signups": rows}).As(v.token)).Want(http.StatusOK).WantJSON("imported", indexed)
	v.Do(t, Patch("/waitlists/"+id+"/signups/"+at("imported7")+"/position", Obj{"position": 1}).As(v.token)).Want(http.StatusOK)
	for range 5 {
		v.Do(t, Get("/public/waitlists/"+id+"/config")).Want(http.StatusOK)
	}

	// The team, memberships in other teams, a forgotten password and a failed login.
	v.Do(t, invite(v.friend, "admin").As(v.token)).Want(http.StatusCreated)
	w.server.AwaitMails(t, v.friend, 1)
	if w.by != nil {
		w.by.Do(t, invite(v.email, "admin").As(w.by.token)).Want(http.StatusCreated)
		v.Do(t, Get("/waitlists/"+w.by.lists[0]).As(v.token)).Want(http.StatusOK)
	}
	v.Do(t, Post("/auth/forgot-password", Obj{"email": v.email})).Want(http.StatusAccepted)
	v.Do(t, Post("/auth/login", Obj{"email": v.email, "password": "wrong password"})).
		WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
	spent := v.refresh
	v.refresh = v.Do(t, Post("/auth/refresh", Obj{"refresh_token": spent})).Want(http.StatusOK).Str("refresh_token")

	v.account, _ = claims(t, v.token)["sub"].(string)
	v.traces = append([]string{
		mark, v.email, v.survivor, v.account, v.key, v.token, v.refresh, spent, ada, verification, unsubscribe, deleteToken,
		v.template, v.domain, v.blast,
	}, v.lists...)
	// Everything that must be gone later can be found now.
	missing := ""
	defer func() {
		if t.Failed() {
			t.Logf("nothing in %s", missing)
		}
	}()
	Await(t, purgeTimeout, "everything is where it belongs", func() bool {
		v.status(t, id, at("imported9")).Want(http.StatusOK) // builds the index
		found := strings.Join(w.find(t, v, append([]string{mark}, v.email, v.account, id, v.template, v.domain, v.blast)), "\n")
		for _, place := range []string{
			"account.account", "account.audit", "account.session", "account.team_member", "signup.audit", "messaging.audit",
			"signup.waitlist", "signup.owner", "signup.signup", "signup.change",
			"signup.queue_bucket", "signup.removed_day", "signup.removed_value", "signup.idempotency_key", "messaging.sent_mail",
			"messaging.template", "messaging.domain", "messaging.blast", "messaging.blast_recipient", "messaging.idempotency_key",
			"admin_analytics.day", "admin_analytics.utm_value", "admin_analytics.utm_total", "Redis",
		} {
			if !strings.Contains(found, place+" ") {
				missing = place
				return false
			}
		}
		return true
	})
	return v
}

// unreachable checks that requests no longer reach an account or its waitlists.
func (w *warden) unreachable(t *testing.T, v *victim, lists ...string) {
	t.Helper()
	account := slices.Equal(lists, v.lists)
	for _, op := range w.contract.Operations() {
		waitlist := strings.Contains(op.Path, "{waitlist_id}")
		if op.Planned || (len(op.Schemes) == 0 && !waitlist) {
			continue
		}
		for _, id := range lists {
			r := w.request(t, op, v.owner, id, "ada@"+v.mark+".example.com", "x")
			switch {
			case len(op.Schemes) == 0 && waitlist:
				v.Do(t, r.Invalid()).WantError(http.StatusNotFound, "NOT_FOUND")
			case len(op.Schemes) > 0 && account:
				v.Do(t, r.Invalid()).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
				v.Do(t, r.Invalid().With("Authorization", "").Key(v.key)).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
			case len(op.Schemes) > 0 && waitlist:
				v.Do(t, r.Invalid()).WantError(http.StatusNotFound, "NOT_FOUND")
			}
			if waitlist && len(op.Schemes) > 0 {
				w.by.Do(t, r.Invalid().As(w.by.token)).WantError(http.StatusNotFound, "NOT_FOUND")
			}
		}
	}
	if account {
		v.Do(t, Post("/auth/refresh", Obj{"refresh_token": v.refresh})).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
		v.Do(t, Post("/auth/login", Obj{"email": v.email, "password": v.password})).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
		if got := w.by.members(t); strings.Contains(got, v.email) {
			t.Errorf("still a member: %s", got)
		}
	}
}

// awaitNothing waits until no trace is left, but in the tables that may keep some.
func (w *warden) awaitNothing(t *testing.T, v *victim, traces []string, keep ...string) {
	t.Helper()
	var left []string
	defer func() {
		if len(left) > 0 {
			t.Logf("left of %s:\n%s", v.email, strings.Join(left[:min(40, len(left))], "\n"))
		}
	}()
	Await(t, purgeTimeout, "nothing is left", func() bool {
		left = slices.DeleteFunc(w.find(t, v, traces), func(found string) bool {
			place, _, _ := strings.Cut(found, " ")
			return slices.Contains(keep, place)
		})
		return len(left) == 0
	})
}

// find returns the places with traces of v: rows, Redis keys and files.
func (w *warden) find(t *testing.T, v *victim, traces []string) []string {
	t.Helper()
	var forms [][]byte
	for _, trace := range traces {
		trace = strings.ToLower(trace)
		bare := strings.ReplaceAll(trace, "-", "")
		forms = append(forms, []byte(trace), []byte(hex.EncodeToString([]byte(trace))))
		if raw, err := hex.DecodeString(bare); err == nil && len(raw) == 16 {
			forms = append(forms, []byte(bare), []byte(bare[:8]+"-"+bare[8:12]+"-"+bare[12:16]+"-"+bare[16:20]+"-"+bare[20:]), raw)
		}
	}
	var found []string
	look := func(place string, content []byte) {
		content = bytes.ToLower(content)
		for _, form := range forms {
			if i := bytes.Index(content, form); i >= 0 {
				found = append(found, fmt.Sprintf("%s %q", place, content[max(0, i-60):min(len(content), i+100)]))
				return
			}
		}
	}
	w.rows(t, look)
	w.keys(t, look)
	w.files(t, append(slices.Clone(v.lists), v.account), look)
	return found
}

// rows passes the text of every row of every table to look.
func (w *warden) rows(t *testing.T, look func(string, []byte)) {
	t.Helper()
	tables, err := w.pool.Query(t.Context(), `
		SELECT table_schema::text, table_name::text FROM information_schema.tables
		WHERE table_type = 'BASE TABLE' AND table_schema NOT IN ('pg_catalog', 'information_schema') ORDER BY 1, 2`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(tables, pgx.RowToStructByPos[struct{ Schema, Name string }])
	if err != nil {
		t.Fatal(err)
	}
	if len(names) < 20 {
		t.Fatalf("only %d tables", len(names))
	}
	for _, n := range names {
		rows, err := w.pool.Query(t.Context(), "SELECT t::text FROM "+pgx.Identifier{n.Schema, n.Name}.Sanitize()+" t")
		if err != nil {
			t.Fatal(err)
		}
		var text string
		if _, err := pgx.ForEachRow(rows, []any{&text}, func() error { look(n.Schema+"."+n.Name, []byte(text)); return nil }); err != nil {
			t.Fatal(err)
		}
	}
}

// keys passes every key of Redis with its value to look.
func (w *warden) keys(t *testing.T, look func(string, []byte)) {
	t.Helper()
	iter := w.redis.Scan(t.Context(), 0, "*", 1000).Iterator()
	for iter.Next(t.Context()) {
		// A key that has expired holds nothing.
		dump, err := w.redis.Dump(t.Context(), iter.Val()).Result()
		if err != nil && err != redis.Nil { //nolint:errorlint // the client returns redis.Nil unwrapped
			t.Fatal(err)
		}
		look("Redis", []byte(iter.Val()+" "+dump))
	}
	if err := iter.Err(); err != nil {
		t.Fatal(err)
	}
}

// files passes the files on disk to look, with four exceptions: Kafka's log is deleted by its retention; mails belong to
// their recipients; programs contain no data; files may disappear meanwhile.
func (w *warden) files(t *testing.T, known []string, look func(string, []byte)) {
	t.Helper()
	root := w.options.Dir
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path != root {
			return nil
		}
		if err != nil {
			return err
		}
		if e.IsDir() {
			if path == w.server.MailDir || path == filepath.Join(root, "data", "kafka") || path == filepath.Join(root, "data", "postgres") {
				return filepath.SkipDir
			}
			return nil
		}
		info, err := e.Info()
		if err == nil && info.Mode()&0o111 != 0 {
			return nil
		}
		content, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		// A log may name a waitlist, because a replica that reads a list during its deletion may build the index and log it. It
		// names the account that was deleted. It names no other person and no secret.
		if filepath.Ext(path) == ".log" {
			for _, id := range known {
				content = bytes.ReplaceAll(content, []byte(id), nil)
			}
		}
		look(path, content)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// bystander creates an account like a victim that is not deleted.
func (w *warden) bystander(t *testing.T) *victim {
	t.Helper()
	w.by = w.victim(t)
	return w.by
}

// unharmed checks that data that was not deleted is still there.
func (w *warden) unharmed(t *testing.T, v *victim) {
	t.Helper()
	for _, id := range v.lists {
		live := w.count(t, id)
		v.Do(t, Get("/waitlists/"+id+"/stats").As(v.token)).Want(http.StatusOK)
		last := v.join(t, id, address("last"), Obj{"consent": true})
		if got := last.Int("position"); got != int64(live)+1 {
			t.Errorf("position %d, after %d people", got, live)
		}
	}
	v.Do(t, Get("/waitlists/"+v.lists[0]+"/signups").As(v.token)).Want(http.StatusOK).WantJSON("count", 50)
	if got, want := v.members(t), v.friend+" admin"; got != want {
		t.Errorf("members %s, want %s", got, want)
	}
}

// traffic sends other people's requests to a bystander's waitlist and to those of an account about to be deleted. stop ends
// it.
func (w *warden) traffic(t *testing.T, v *victim) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 4 {
		c := w.client(t)
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				list, theirs := w.by.lists[0], false
				if n%2 == 0 {
					list, theirs = v.lists[n/2%2], true
				}
				email := fmt.Sprintf("passer%d-%d@%s.example.com", i, n, v.mark)
				if !theirs {
					email = address("passer")
				}
				for _, r := range []Request{
					signup(list, email, Obj{"consent": true, "utm_source": "traffic"}), Get(statusPath(list, email)),
					Get("/public/waitlists/" + list + "/config"), Get("/public/waitlists/" + list + "/leaderboard"),
				} {
					res, err := c.Send(ctx, r)
					switch {
					case ctx.Err() != nil:
						return
					case err != nil:
						t.Errorf("%s: %v", r, err)
						return
					case res.Status >= 400 && (!theirs || res.ErrorCode() != "NOT_FOUND"):
						t.Errorf("%s → %d %s", r, res.Status, clip(res.Body))
						return
					}
				}
			}
		})
	}
	return func() { cancel(); wg.Wait() }
}
