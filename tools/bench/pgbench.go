package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// The reference for B1, B3 and B13: a plain implementation of a signup in the same Postgres. One transaction updates the
// waitlist's counter, whose new value is the position, inserts the signup and inserts the event. The tables are copies of
// the service's, without the index that sorts the queue and without a foreign key to the counter's row.
const naiveTables = `
CREATE SCHEMA naive;
CREATE TABLE naive.counter (waitlist_id uuid PRIMARY KEY, signups bigint NOT NULL);
CREATE TABLE naive.signup (LIKE signup.signup INCLUDING ALL);
CREATE TABLE naive.outbox (LIKE signup.outbox INCLUDING ALL);
DO $$
DECLARE v_index text;
BEGIN
    FOR v_index IN SELECT conname FROM pg_constraint
        WHERE conrelid = 'naive.signup'::regclass AND pg_get_constraintdef(oid) LIKE '%queue_key%' LOOP
        EXECUTE format('ALTER TABLE naive.signup DROP CONSTRAINT %I', v_index);
    END LOOP;
    FOR v_index IN SELECT indexrelid::regclass::text FROM pg_index
        WHERE indrelid = 'naive.signup'::regclass AND pg_get_indexdef(indexrelid) LIKE '%referral_count%' LOOP
        EXECUTE 'DROP INDEX ' || v_index;
    END LOOP;
END;
$$;
INSERT INTO naive.counter VALUES ('` + naiveList + `', 0);
`

const naiveList = "00000000-0000-4000-8000-000000000001"

// naiveScript is one such signup. Its event has the size of a real one.
var naiveScript = `BEGIN;
UPDATE naive.counter SET signups = signups + 1 WHERE waitlist_id = '` + naiveList + `' RETURNING signups \gset
INSERT INTO naive.signup (waitlist_id, number, queue_key, email, token, created_at, first_name, last_name, utm_source, utm_medium)
	VALUES ('` + naiveList + `', :signups, :signups, 'a' || :signups || '@example.com',
		gen_random_uuid(), now(), 'Ann', 'Example', 'launch', 'mail');
INSERT INTO naive.outbox (topic, key, payloads, traceparent)
	VALUES ('waitlist.signups.v1', '` + naiveList + `', ARRAY['` + strings.Repeat("x", 260) + `'::bytea], '');
COMMIT;
`

// naiveQueue is what naiveReferral needs in addition to the tables.
const naiveQueue = `
CREATE SEQUENCE naive.number CACHE 1;
CREATE INDEX ON naive.signup (waitlist_id, queue_key);
`

// naiveReferral is such a signup with a referrer, chosen as by launch.token: the referrer gets a key in the middle between
// the two in front, as sparse keys allow. Numbers come from a sequence, so that nobody waits for a counter's row. It
// leaves out exact positions: nobody is told one, two referrers may get one key, and a gap that is used up is not widened.
var naiveReferral = `BEGIN;
INSERT INTO naive.signup (waitlist_id, number, queue_key, email, token, created_at, first_name, last_name, utm_source)
	SELECT '` + naiveList + `', n, n << 20, 'a' || n || '@example.com', gen_random_uuid(), now(), 'Ann', 'Example', 'launch'
	FROM nextval('naive.number') AS n RETURNING number \gset
INSERT INTO naive.outbox (topic, key, payloads, traceparent)
	VALUES ('waitlist.signups.v1', '` + naiveList + `', ARRAY['` + strings.Repeat("x", 260) + `'::bytea], '');
\set referrer 1 + (random_zipfian(1, ` + strconv.Itoa(inviters) + `, ` + strconv.FormatFloat(zipf, 'f', -1, 64) + `) - 1) % :number
UPDATE naive.signup AS s SET referral_count = referral_count + 1, queue_key = coalesce((
	SELECT min(k) + (max(k) - min(k)) / 2 FROM (
		SELECT queue_key AS k FROM naive.signup WHERE waitlist_id = '` + naiveList + `' AND queue_key < s.queue_key
		ORDER BY queue_key DESC LIMIT 2
	) AS ahead), queue_key)
WHERE waitlist_id = '` + naiveList + `' AND number = :referrer;
COMMIT;
`

// naive runs a script with pgbench.
type naive struct {
	program, dir, script string
}

// newNaive creates the script's tables.
func newNaive(ctx context.Context, conn *pgx.Conn, dir, tables, text string) (*naive, error) {
	program, err := pgbenchPath()
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, tables); err != nil {
		return nil, fmt.Errorf("create the reference's tables: %w", err)
	}
	script := filepath.Join(dir, "naive.sql")
	if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("write the script: %w", err)
	}
	return &naive{program: program, dir: dir, script: script}, nil
}

func pgbenchPath() (string, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/pgbench") // fails only on a malformed pattern
	slices.Sort(found)
	if len(found) > 0 {
		return found[len(found)-1], nil
	}
	path, err := exec.LookPath("pgbench")
	if err != nil {
		return "", errors.New("cannot find pgbench; install Postgres' programs (Debian, Ubuntu: apt-get install postgresql)")
	}
	return path, nil
}

var tps = regexp.MustCompile(`(?m)^tps = ([0-9.]+)`)

// run keeps clients busy for d against the server at addr.
func (n *naive) run(ctx context.Context, addr, database string, clients int, d time.Duration) (sample, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return sample{}, fmt.Errorf("read the server's address: %w", err)
	}
	prefix := filepath.Join(n.dir, "pgbench_log")
	cmd := exec.CommandContext(ctx, n.program, "-n", "-M", "prepared", "-f", n.script, "-c", strconv.Itoa(clients),
		"-j", strconv.Itoa(min(clients, 2)), "-T", strconv.Itoa(max(1, int(d.Seconds()))), "-l", "--log-prefix", prefix,
		"-h", host, "-p", port, "-U", "postgres", database)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return sample{}, fmt.Errorf("run pgbench: %w\n%s", err, out)
	}
	match := tps.FindSubmatch(out)
	if match == nil {
		return sample{}, fmt.Errorf("pgbench printed no tps:\n%s", out)
	}
	var s sample
	if s.perSecond, err = strconv.ParseFloat(string(match[1]), 64); err != nil {
		return sample{}, fmt.Errorf("parse pgbench's tps: %w", err)
	}
	logs, _ := filepath.Glob(prefix + ".*") // fails only on a malformed pattern
	for _, log := range logs {
		if s.latencies, err = readLog(s.latencies, log); err != nil {
			return sample{}, err
		}
		if err := os.Remove(log); err != nil {
			return sample{}, fmt.Errorf("remove pgbench's log: %w", err)
		}
	}
	slices.Sort(s.latencies)
	return s, nil
}

// readLog appends the log's third column, in microseconds.
func readLog(to []int, path string) ([]int, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open pgbench's log: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		columns := strings.Fields(lines.Text())
		if len(columns) < 3 {
			return nil, fmt.Errorf("unexpected line in pgbench's log: %q", lines.Text())
		}
		us, err := strconv.Atoi(columns[2])
		if err != nil {
			return nil, fmt.Errorf("read pgbench's log: %w", err)
		}
		to = append(to, us)
	}
	return to, lines.Err()
}
