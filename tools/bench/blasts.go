package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	gosmtp "github.com/emersion/go-smtp"
	"github.com/wneessen/go-mail"
)

const (
	// blastWorkers is the number of SMTP connections on both sides: a blast's default.
	blastWorkers = 4
	// blastLook is the pause between two checks of a blast's status.
	blastLook = 200 * time.Millisecond
	// Both sides send this mail.
	blastSubject = "We are live"
	blastText    = "Hello,\n\nthe doors are open. Come and see: https://example.com\n"
	blastHTML    = `<!DOCTYPE html><html><body><p>Hello,</p><p>the doors are open. ` +
		`<a href="https://example.com">Come and see</a>.</p></body></html>`
	// The footer adds this.
	blastFooterText = "\n\n-- \nYou get this mail because you joined the waitlist \"Launch\" with this\n" +
		"address. If you want no more of them:\n\n"
	blastFooterHTML = `
<hr style="margin:32px 0 16px;border:0;border-top:1px solid #d1d5db">
<p style="font-family:sans-serif;font-size:13px;line-height:1.5;color:#6b7280">` +
		`You get this mail because you joined the waitlist &ldquo;Launch&rdquo; with this address. <a href="`
	blastLink = "https://example.com/unsubscribe?waitlist=0197f0c4-6d0e-7cc1-a2a3-bbbbbbbbbbbb" +
		"&email=a0000000001%40example.com&token=v1.k1.unsub.0.0123456789012345678901234567890123456789012"
)

// devNull accepts every mail and discards it.
type devNull struct{}

// Mail implements gosmtp.Session.
func (devNull) Mail(string, *gosmtp.MailOptions) error { return nil }

// Rcpt implements gosmtp.Session.
func (devNull) Rcpt(string, *gosmtp.RcptOptions) error { return nil }

// Data implements gosmtp.Session.
func (devNull) Data(r io.Reader) error { _, err := io.Copy(io.Discard, r); return err }

// Reset implements gosmtp.Session.
func (devNull) Reset() {}

// Logout implements gosmtp.Session.
func (devNull) Logout() error { return nil }

// smtpSink runs an SMTP server that discards mails until standard input ends.
func smtpSink(ctx context.Context) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	s := gosmtp.NewServer(gosmtp.BackendFunc(func(*gosmtp.Conn) (gosmtp.Session, error) { return devNull{}, nil }))
	s.Domain = "localhost"
	s.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	fmt.Println(l.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = s.Close()
	}()
	if err := s.Serve(l); err != nil && !errors.Is(err, gosmtp.ErrServerClosed) {
		return fmt.Errorf("serve SMTP: %w", err)
	}
	return nil
}

// blasts measures B11 through the whole suite.
func (b *bench) blasts(ctx context.Context) (err error) {
	sink, err := b.role(ctx, roleSMTP)
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(sink)
	if err != nil {
		return fmt.Errorf("parse the sink's address: %w", err)
	}
	s, conn, err := b.openSuite(ctx, "blasts", "MAIL_PROVIDER=smtp", "SMTP_HOST="+host, "SMTP_PORT="+port, "SMTP_TLS=none",
		"MAIL_FROM=Launch <no-reply@example.com>", "MAIL_WORKERS="+strconv.Itoa(blastWorkers))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(ctx, conn)) }()
	small, large := b.recipients, 10*b.recipients
	lists := map[int]*list{}
	for _, n := range []int{small, large} {
		if lists[n], err = s.newList(ctx); err != nil {
			return err
		}
		took, err := fill(ctx, conn, lists[n], n)
		if err != nil {
			return err
		}
		b.say("filled a waitlist with %d signups in %.0f s", n, took.Seconds())
	}
	settle := func(ctx context.Context) error { _, err := conn.Exec(ctx, "CHECKPOINT"); return err }
	peaks := map[int]int{}
	pairs, err := b.turns(ctx, "B11", settle, func(ctx context.Context, _ time.Duration) (sample, error) {
		if err := s.resetPeak(); err != nil {
			return sample{}, err
		}
		start := time.Now()
		if err := s.blast(ctx, lists[small], small); err != nil {
			return sample{}, err
		}
		took := clock(start)
		peaks[small], err = s.peak()
		return sample{perSecond: float64(small) / took}, err
	}, func(ctx context.Context, _ time.Duration) (sample, error) {
		start := time.Now()
		err := bareLoop(ctx, host, port, small)
		return sample{perSecond: float64(small) / clock(start)}, err
	}, 0)
	if err != nil {
		return err
	}
	ours, theirs, ratio := of(pairs, rate)
	b.add(row{
		id: "B11", goal: "≥ 0.6 ×", ratio: ratio, met: ratio >= .6,
		what: fmt.Sprintf("Mails a second of a blast to %d recipients, ledger and footer included, against a bare loop of the same "+
			"SMTP library over as many connections (%d).", small, blastWorkers),
		ours: fmt.Sprintf("%.0f/s", ours), theirs: fmt.Sprintf("%.0f/s", theirs),
	})
	if err := s.resetPeak(); err != nil {
		return err
	}
	if err := s.blast(ctx, lists[large], large); err != nil {
		return err
	}
	if peaks[large], err = s.peak(); err != nil {
		return err
	}
	ratio = float64(peaks[large]) / float64(peaks[small])
	b.add(row{
		id: "B11 memory", goal: "≤ 1.2 ×", ratio: ratio, met: ratio <= 1.2,
		what: fmt.Sprintf("Peak memory of the whole suite in one process during a blast to %d recipients against %d.", large, small),
		ours: fmt.Sprintf("%d MiB", peaks[large]>>20), theirs: fmt.Sprintf("%d MiB", peaks[small]>>20),
	})
	return nil
}

// blast sends a blast to a waitlist with n signups and returns when it is sent.
func (s *suite) blast(ctx context.Context, l *list, n int) error {
	body, err := json.Marshal(map[string]string{"subject": blastSubject, "text_body": blastText, "html_body": blastHTML})
	if err != nil {
		return fmt.Errorf("encode a blast: %w", err)
	}
	path := "/v1/waitlists/" + l.id + "/blasts"
	var made struct {
		ID string `json:"blast_id"`
	}
	if err := s.post(ctx, path, body, &made); err != nil {
		return err
	}
	return poll(ctx, blastLook, func() (bool, error) {
		res, err := s.do(ctx, http.MethodGet, path, nil)
		if err != nil {
			return false, err
		}
		defer res.Body.Close()
		var list struct {
			Blasts []struct {
				ID         string `json:"blast_id"`
				Status     string `json:"status"`
				Recipients int    `json:"recipient_count"`
				Failed     int    `json:"failed_count"`
			} `json:"blasts"`
		}
		if err := json.NewDecoder(res.Body).Decode(&list); err != nil {
			return false, fmt.Errorf("read the list of blasts: %w", err)
		}
		newest := list.Blasts[0]
		switch {
		case newest.ID != made.ID || newest.Status == "failed" || newest.Failed > 0:
			return false, fmt.Errorf("unexpected newest blast %+v", newest)
		case newest.Status != "sent":
			return false, nil
		case newest.Recipients != n:
			return false, fmt.Errorf("the blast to %d signups had %d recipients", n, newest.Recipients)
		}
		return true, nil
	})
}

// bareLoop sends n mails without any bookkeeping.
func bareLoop(ctx context.Context, host, port string, n int) error {
	number, err := strconv.Atoi(port)
	if err != nil {
		return fmt.Errorf("parse the sink's port: %w", err)
	}
	var (
		next atomic.Int64
		all  sync.WaitGroup
		errs = make([]error, blastWorkers)
	)
	for i := range blastWorkers {
		all.Go(func() {
			client, err := mail.NewClient(host, mail.WithPort(number), mail.WithTLSPolicy(mail.NoTLS))
			if err != nil {
				errs[i] = err
				return
			}
			conn, err := client.DialToSMTPClientWithContext(ctx)
			if err != nil {
				errs[i] = err
				return
			}
			defer func() { _ = client.CloseWithSMTPClient(conn) }()
			for ctx.Err() == nil {
				k := next.Add(1)
				if k > int64(n) {
					return
				}
				m := mail.NewMsg()
				if errs[i] = errors.Join(m.From("no-reply@example.com"), m.To(address(k))); errs[i] != nil {
					return
				}
				m.Subject(blastSubject)
				m.SetGenHeader("List-Unsubscribe", "<"+blastLink+">")
				m.SetGenHeader("List-Unsubscribe-Post", "List-Unsubscribe=One-Click")
				m.SetMessageID()
				m.SetDate()
				m.SetBodyString(mail.TypeTextPlain, blastText+blastFooterText+blastLink+"\n")
				m.AddAlternativeString(mail.TypeTextHTML, blastHTML+blastFooterHTML+blastLink+`" style="color:#6b7280">Unsubscribe</a></p>`)
				if errs[i] = client.SendWithSMTPClient(conn, m); errs[i] != nil {
					return
				}
			}
		})
	}
	all.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}
