package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	ctid   = regexp.MustCompile(`\bctid\s*(=|IN\b)`)
	query  = regexp.MustCompile(`\(\s*SELECT\b`)
	listed = regexp.MustCompile(`\bwaitlist_id\b`)
)

// condition returns the WHERE clause around text[at], without the queries within.
func condition(text string, at int) string {
	clause := text[max(strings.LastIndex(text[:at], "WHERE"), 0):]
	var out strings.Builder
	depth, hidden := 0, 0
	for i := 0; i < len(clause); i++ {
		switch clause[i] {
		case '(':
			depth++
			if hidden == 0 && query.MatchString(clause[i:min(i+20, len(clause))]) && query.FindStringIndex(clause[i:])[0] == 0 {
				hidden = depth
			}
		case ')':
			if depth == 0 {
				return out.String()
			}
			if hidden == depth {
				hidden = 0
			}
			depth--
		case ';':
			return out.String()
		case '`':
			// Go's end of the statement, unless it puts the name of a table in here.
			if !strings.HasPrefix(clause[i+1:], "+") && !strings.HasSuffix(out.String(), "+") {
				return out.String()
			}
		}
		if hidden == 0 {
			out.WriteByte(clause[i])
		}
	}
	return out.String()
}

// The place of a row is its own only within one table, and a partition is a table: a
// statement that finds rows by ctid alone changes those of other waitlists once the table
// is partitioned.
func TestPlacesOfRowsComeWithTheirKey(t *testing.T) {
	for text, ok := range map[string]bool{
		"DELETE FROM a WHERE ctid = ANY (ARRAY(SELECT ctid FROM a WHERE waitlist_id = $1))":                                    false,
		"DELETE FROM a WHERE waitlist_id = $1 AND ctid = ANY (ARRAY(SELECT ctid FROM a WHERE waitlist_id = $1))":               true,
		"DELETE FROM a WHERE ctid = ANY (ARRAY(SELECT ctid FROM o)) AND (waitlist_id, no) IN (SELECT waitlist_id, no FROM o);": true,
		"UPDATE a SET n = 1 FROM p WHERE a.ctid = p.ctid`\n// waitlist_id":                                                     false,
	} {
		if got := listed.MatchString(condition(text, ctid.FindStringIndex(text)[0])); got != ok {
			t.Errorf("%q is taken: %t", text, got)
		}
	}
	seen := 0
	for _, pattern := range []string{"*.go", filepath.Join("queries", "*.sql")} {
		paths, err := filepath.Glob(filepath.Join("..", "..", "..", "services", "*", "postgres", pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, at := range ctid.FindAllIndex(b, -1) {
				seen++
				if clause := condition(string(b), at[0]); !listed.MatchString(clause) {
					t.Errorf("%s finds rows by ctid without waitlist_id: %s", path, clause)
				}
			}
		}
	}
	if seen == 0 {
		t.Error("no statement has a ctid: remove this test")
	}
}
