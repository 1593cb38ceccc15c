package devservers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrNoPostgres means that Postgres is not installed.
var ErrNoPostgres = errors.New("no Postgres found: " +
	"install it (Debian, Ubuntu: apt-get install postgresql; macOS: brew install postgresql), " +
	"or set POSTGRES_URL to a running one")

const (
	// postgresStart bounds a start, including crash recovery.
	postgresStart = 60 * time.Second
	// portTries is how many free ports a start tries. Where FreePort cannot reserve
	// one, another process may take it before the server listens on it.
	portTries = 5
)

// PostgresOptions says what StartPostgres starts.
type PostgresOptions struct {
	// Dir holds the server's files and is created if missing. A second start on
	// it finds the data of the first.
	Dir string
	// Port on 127.0.0.1; 0 takes a free one.
	Port int
	// Dist is the folder for Postgres programs that are downloaded if none are
	// installed. "" downloads nothing.
	Dist string
	// Settings of postgresql.conf override those of this package.
	// fsync=off also skips syncing in initdb.
	Settings map[string]string
}

// Postgres is a running server.
type Postgres struct {
	port  int
	child *child
}

// StartPostgres starts the newest Postgres it finds (or, on an existing
// directory, the version that wrote it) and returns once it answers queries.
// The superuser is postgres, without a password, reachable from this machine
// only. ctx bounds the start alone.
func StartPostgres(ctx context.Context, o PostgresOptions) (*Postgres, error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("resolve %s: %w", o.Dir, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the Postgres directory: %w", err)
	}
	data := filepath.Join(dir, "data")
	if err := stopOrphan(filepath.Join(data, "postmaster.pid"), data, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGKILL); err != nil {
		return nil, err
	}
	bin, err := postgresBin(data, o.Dist)
	if err != nil {
		return nil, err
	}
	// SIGINT is the fast shutdown of Postgres.
	attr := childAttr(syscall.SIGINT)
	if err := unprivileged(attr, dir); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, postgresStart)
	defer cancel()
	if err := initdb(ctx, bin, data, attr, o.Settings["fsync"] == "off"); err != nil {
		return nil, err
	}
	if err := removeForeignPid(filepath.Join(data, "postmaster.pid")); err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		p, err := startPostgres(ctx, bin, dir, data, attr, o)
		switch {
		case err == nil:
			return p, nil
		case try < portTries && o.Port == 0 && strings.Contains(err.Error(), "could not bind"):
		case ctx.Err() == nil && strings.Contains(err.Error(), "pre-existing shared memory block"):
			// The backends of a killed server take a moment to notice its death.
		default:
			return nil, err
		}
	}
}

func startPostgres(ctx context.Context, bin, dir, data string, attr *syscall.SysProcAttr, o PostgresOptions) (*Postgres, error) {
	port := o.Port
	if port == 0 {
		var err error
		if port, err = FreePort(); err != nil {
			return nil, err
		}
	}
	settings := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    strconv.Itoa(port),
		"unix_socket_directories": "",
		"max_connections":         "300",
		"log_min_messages":        "warning",
		"log_line_prefix":         "%m [%p] %d ",
		// All queries are short: compiling them costs more than it saves.
		"jit": "off",
	}
	maps.Copy(settings, o.Settings)
	args := []string{"-D", data}
	for k, v := range settings {
		args = append(args, "-c", k+"="+v)
	}
	cmd := exec.Command(filepath.Join(bin, "postgres"), args...)
	cmd.Dir, cmd.SysProcAttr, cmd.Env = "/", attr, postgresEnv() // it changes to its data directory
	// Each start has its own log, so an error quotes only that start.
	logPath := filepath.Join(dir, "postgres.log")
	_ = os.Rename(logPath, logPath+".old")
	c, err := startChild("postgres", cmd, logPath)
	if err != nil {
		return nil, err
	}
	p := &Postgres{port: port, child: c}
	err = c.ready(ctx, func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, p.URL("postgres"))
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	})
	if err != nil {
		c.kill()
		return nil, err
	}
	return p, nil
}

// Standby starts a server that follows p, with its files in dir, until it is promoted. It has the
// settings that are given, not those of p.
func (p *Postgres) Standby(ctx context.Context, dir string, settings map[string]string) (*Postgres, error) {
	bins := postgresBins()
	if len(bins) == 0 {
		return nil, ErrNoPostgres
	}
	cmd := exec.CommandContext(ctx, filepath.Join(bins[0].dir, "pg_basebackup"), "-d", p.URL("postgres"),
		"-D", filepath.Join(dir, "data"), "-R", "-c", "fast", "--no-sync")
	cmd.Dir, cmd.Env = "/", postgresEnv()
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("pg_basebackup: %w\n%s", err, strings.TrimSpace(string(out)))
	}
	return StartPostgres(ctx, PostgresOptions{Dir: dir, Settings: settings})
}

// removeForeignPid removes a pid file whose pid now belongs to another process,
// which Postgres would mistake for a running server. The file of a dead process
// stays: Postgres finds the shared memory to check in it.
func removeForeignPid(pidFile string) error {
	pid, ok := readPid(pidFile)
	if !ok || errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return nil
	}
	if err := os.Remove(pidFile); err != nil {
		return fmt.Errorf("remove a stale pid file: %w", err)
	}
	return nil
}

// URL is the connection string of a database of the server.
func (p *Postgres) URL(database string) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", p.port, database)
}

// Port is where the server listens on 127.0.0.1.
func (p *Postgres) Port() int { return p.port }

// Done is closed when the server has ended for any reason.
func (p *Postgres) Done() <-chan struct{} { return p.child.done }

// Stop ends open sessions, writes all data to disk and stops the server.
func (p *Postgres) Stop() error { return p.child.stop(syscall.SIGINT) }

// Kill ends the server with SIGKILL. Its backends notice and end, too.
func (p *Postgres) Kill() { p.child.kill() }

// CreateDatabase creates a database unless it exists.
func (p *Postgres) CreateDatabase(ctx context.Context, name string) error {
	conn, err := pgx.Connect(ctx, p.URL("postgres"))
	if err != nil {
		return fmt.Errorf("connect to Postgres: %w", err)
	}
	defer conn.Close(ctx)
	var there bool
	if err := conn.QueryRow(ctx, "select exists (select from pg_database where datname = $1)", name).Scan(&there); err != nil {
		return fmt.Errorf("look for database %s: %w", name, err)
	}
	if there {
		return nil
	}
	if _, err := conn.Exec(ctx, "create database "+pgx.Identifier{name}.Sanitize()); err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	return nil
}

// initdb creates the cluster in data unless it exists. data is either complete or
// missing, also after a crash.
func initdb(ctx context.Context, bin, data string, attr *syscall.SysProcAttr, noSync bool) error {
	if _, err := os.Stat(filepath.Join(data, "PG_VERSION")); err == nil {
		return nil
	}
	half := data + ".new"
	if err := os.RemoveAll(half); err != nil {
		return fmt.Errorf("remove an unfinished cluster: %w", err)
	}
	args := []string{"-D", half, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C"}
	if noSync {
		args = append(args, "--no-sync")
	}
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), args...)
	cmd.Dir, cmd.SysProcAttr, cmd.Env = "/", attr, postgresEnv()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, strings.TrimSpace(string(out)))
	}
	if err := os.Rename(half, data); err != nil {
		return fmt.Errorf("put the new cluster in its place: %w", err)
	}
	return nil
}

// postgresEnv returns the environment without PG* variables, which would change
// defaults, and with the C locale, which every machine has.
func postgresEnv() []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "PG") || strings.HasPrefix(kv, "LC_") || strings.HasPrefix(kv, "LANG")
	})
	return append(env, "LC_ALL=C")
}

// postgresBin returns the folder with the initdb and postgres programs for the
// cluster in data: of the version that created it, or the newest for a new one. If
// none is installed it downloads one into dist, unless dist is "".
func postgresBin(data, dist string) (string, error) {
	bins := postgresBins()
	if dist != "" && (len(bins) == 0 || complete(filepath.Join(dist, strconv.Itoa(fetchedMajor)))) {
		fetched, err := fetchPostgres(dist)
		if err != nil {
			return "", err
		}
		bins = append(bins, fetched)
	}
	if len(bins) == 0 {
		return "", ErrNoPostgres
	}
	raw, err := os.ReadFile(filepath.Join(data, "PG_VERSION"))
	if errors.Is(err, os.ErrNotExist) {
		return bins[0].dir, nil
	}
	if err != nil {
		return "", fmt.Errorf("read the cluster's version: %w", err)
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		return "", fmt.Errorf("read the cluster's version: %w", err)
	}
	for _, b := range bins {
		if b.major == major {
			return b.dir, nil
		}
	}
	return "", fmt.Errorf("%[1]s was created by Postgres %[2]d, which is not installed: install postgresql-%[2]d, "+
		"or move the directory away to start with an empty database", data, major)
}

type installation struct {
	dir   string
	major int
}

// postgresBins lists the installed versions, newest first.
func postgresBins() []installation {
	var dirs []string
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",          // Debian, Ubuntu
		"/usr/pgsql-*/bin",                   // Red Hat (PGDG)
		"/opt/homebrew/opt/postgresql@*/bin", // macOS
		"/usr/local/opt/postgresql@*/bin",    // macOS on Intel
		"/usr/lib/postgresql*/bin",           // openSUSE
		"/usr/libexec/postgresql*",           // Alpine
		"/Applications/Postgres.app/Contents/Versions/latest/bin",
	} {
		found, _ := filepath.Glob(pattern) // fails on a malformed pattern only
		dirs = append(dirs, found...)
	}
	if path, err := exec.LookPath("postgres"); err == nil {
		if program, err := filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(program))
		}
	}
	var bins []installation
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
			continue
		}
		out, err := exec.Command(filepath.Join(dir, "postgres"), "--version").Output()
		if err != nil {
			continue
		}
		// "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"
		fields := strings.Fields(string(out))
		if len(fields) < 3 {
			continue
		}
		digits := strings.IndexFunc(fields[2]+".", func(r rune) bool { return r < '0' || r > '9' }) // "15.18", "19beta1"
		major, err := strconv.Atoi(fields[2][:digits])
		if err != nil {
			continue
		}
		bins = append(bins, installation{dir, major})
	}
	slices.SortStableFunc(bins, func(a, b installation) int { return b.major - a.major })
	return bins
}
