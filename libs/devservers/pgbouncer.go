package devservers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// ErrNoPgBouncer means that PgBouncer is not installed.
var ErrNoPgBouncer = errors.New("no pgbouncer found: install it (Debian, Ubuntu: apt-get install pgbouncer; macOS: brew install pgbouncer)")

// PgBouncerOptions says what StartPgBouncer starts.
type PgBouncerOptions struct {
	// Dir holds the server's files and is created if missing.
	Dir string
	// Server is the URL of a Postgres that asks for no password.
	Server string
	// Mode is session or transaction.
	Mode string
	// Port on 127.0.0.1; 0 takes a free one.
	Port int
}

// PgBouncer is a running pooler.
type PgBouncer struct {
	port  int
	child *child
}

// StartPgBouncer starts a pooler that refuses startup parameters that it does not track, as
// most are configured. It uses the server's connections in turn, so that two transactions of
// a client hardly share one. Anybody may log in, as any role. ctx bounds the start alone.
func StartPgBouncer(ctx context.Context, o PgBouncerOptions) (*PgBouncer, error) {
	bin, err := pgbouncer()
	if err != nil {
		return nil, err
	}
	server, err := url.Parse(o.Server)
	if err != nil {
		return nil, fmt.Errorf("parse the URL of Postgres: %w", err)
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("resolve %s: %w", o.Dir, err)
	}
	if o.Port == 0 {
		if o.Port, err = FreePort(); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the PgBouncer directory: %w", err)
	}
	users, config := filepath.Join(dir, "users.txt"), filepath.Join(dir, "pgbouncer.ini")
	// With auth_type any, the server sees one user for all unless the user is listed.
	var listed strings.Builder
	roles, err := roles(ctx, o.Server)
	if err != nil {
		return nil, err
	}
	for _, role := range roles {
		fmt.Fprintf(&listed, "%q \"\"\n", role)
	}
	ini := fmt.Sprintf(`[databases]
* = host=%s port=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = trust
auth_file = %s
pool_mode = %s
server_round_robin = 1
max_client_conn = 1000
default_pool_size = 40
server_tls_sslmode = disable
`, server.Hostname(), server.Port(), o.Port, users, o.Mode)
	if err := errors.Join(os.WriteFile(users, []byte(listed.String()), 0o600), os.WriteFile(config, []byte(ini), 0o600)); err != nil {
		return nil, fmt.Errorf("configure PgBouncer: %w", err)
	}
	attr := childAttr(syscall.SIGTERM)
	if err := unprivileged(attr, dir); err != nil {
		return nil, err
	}
	cmd := exec.Command(bin, "-q", config)
	cmd.Dir, cmd.SysProcAttr = "/", attr
	c, err := startChild("pgbouncer", cmd, filepath.Join(dir, "pgbouncer.log"))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, redisStart)
	defer cancel()
	if err := c.ready(ctx, func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(o.Port)))
		if err != nil {
			return err
		}
		return conn.Close()
	}); err != nil {
		c.kill()
		return nil, err
	}
	return &PgBouncer{port: o.Port, child: c}, nil
}

// pgbouncer returns the program, which Debian puts where only root looks.
func pgbouncer() (string, error) {
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", ErrNoPgBouncer
}

// roles lists the roles that may log in.
func roles(ctx context.Context, server string) ([]string, error) {
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return nil, fmt.Errorf("connect to Postgres: %w", err)
	}
	defer conn.Close(ctx)
	// CollectRows also returns the error of Query.
	rows, _ := conn.Query(ctx, "select rolname from pg_roles where rolcanlogin")
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("list the roles: %w", err)
	}
	return names, nil
}

// Through returns a URL of the server by way of the pooler.
func (p *PgBouncer) Through(server string) string {
	u, err := url.Parse(server)
	if err != nil {
		return server // the driver reports what is wrong with it
	}
	u.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port))
	return u.String()
}

// Stop closes all connections and stops the pooler.
func (p *PgBouncer) Stop() error { return p.child.stop(syscall.SIGTERM) }
