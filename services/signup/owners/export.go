package owners

import (
	"bytes"
	"context"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/audit"
	"waitlist.internal/services/signup/queue"
	"waitlist.internal/services/signup/waitlist"
)

const (
	// exportChunk is about how many bytes of a file are sent at a time.
	exportChunk = 64 << 10
	// exportTimeout bounds an export, whose snapshot keeps Postgres from vacuuming.
	exportTimeout = time.Hour
	// stampLayout is how the API writes times.
	stampLayout = "2006-01-02T15:04:05.000Z"
)

// ExportRow is one signup of an export. Its texts are valid until the next row is
// read.
type ExportRow struct {
	Email, FirstName, LastName, Phone []byte
	ReferralCount                     int64
	Token                             queue.Token
	// Referrer is the token of the referrer, credited or not, if HasReferrer.
	Referrer    queue.Token
	HasReferrer bool
	// UTM are source, medium, campaign, term and content.
	UTM [5][]byte
	// Answers are in the order of the questions. nil means no answer.
	Answers                       [][]byte
	OptOutAt, ConsentAt           time.Time // zero: never
	ConsentVersion, PolicyVersion []byte
	Verified                      bool
	// Flagged names what the referral guard found.
	Flagged   []byte
	CreatedAt time.Time
}

// ExportStore reads whole waitlists.
type ExportStore interface {
	// Record writes an entry of the audit trail.
	Record(ctx context.Context, e audit.Entry) error
	// Export reads one snapshot. It passes the waitlist, and whether any signup is flagged,
	// to begin, then every live signup to row, front of the queue first. It stops at the
	// first error of row. Only ctx bounds its duration. NOT_FOUND: there is no such waitlist.
	Export(ctx context.Context, waitlistID string, begin func(w *waitlist.Waitlist, flagged bool), row func(*ExportRow) error) error
}

// Export passes the waitlist as a CSV file to send, in pieces of whole records of one
// snapshot. A piece is valid during the call. The file is complete only if Export
// returns nil. Export sends nothing before the snapshot is open.
func (a *Admin) Export(ctx context.Context, actor access.Actor, waitlistID string, send func([]byte) error) error {
	w, grant, err := a.readable(ctx, actor, waitlistID)
	if err != nil {
		return err
	}
	if err := access.RequireTier(grant.Entitlement, access.Basic, "The export"); err != nil {
		return err
	}
	leave, err := a.exports.enter(ctx, w.OwnerID)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, exportTimeout)
	defer cancel()
	// Record the export before it sends anything: sent data is out, even if the export fails.
	if err := a.store.Record(ctx, audit.By(actor, w.OwnerID, audit.SignupsExported, w.ID)); err != nil {
		return err
	}
	f := csvFile{buf: make([]byte, 0, exportChunk+exportChunk/4), send: send}
	if err := a.store.Export(ctx, w.ID, f.header, f.row); err != nil {
		return err
	}
	return f.flush()
}

// csvFile writes an export: RFC 4180, UTF-8 without BOM.
type csvFile struct {
	buf  []byte
	send func([]byte) error
	// position is the position of the last row.
	position int64
	// flags says that there is a column of what the referral guard found.
	flags bool
}

func (f *csvFile) flush() error {
	if len(f.buf) == 0 {
		return nil
	}
	err := f.send(f.buf)
	f.buf = f.buf[:0]
	return err
}

// lineBreaks makes one line of a question's label.
var lineBreaks = strings.NewReplacer("\r\n", " ", "\r", " ", "\n", " ")

// header names the columns, each differently: readers take a row for a map. A label that
// names another column gets the question's id.
func (f *csvFile) header(w *waitlist.Waitlist, flagged bool) {
	f.flags = flagged || w.Settings.ReferralGuard.On()
	before := "email,first_name,last_name,phone,position,referral_count,referral_token,referred_by," +
		"utm_source,utm_medium,utm_campaign,utm_term,utm_content,"
	after := "email_opt_out,email_opt_out_at,consent_given_at,consent_text_version," +
		"privacy_policy_version,email_verified,created_at"
	if f.flags {
		after += ",flagged"
	}
	names := strings.Split(before+after, ",")
	f.buf = append(f.buf, before...)
	for _, q := range w.Settings.CustomQuestions {
		name := lineBreaks.Replace(q.Label)
		if formula([]byte(name)) {
			name = "'" + name
		}
		for slices.Contains(names, name) {
			name += " (" + q.ID + ")"
		}
		names = append(names, name)
		f.cell([]byte(name), false)
	}
	f.buf = append(f.buf, after+"\r\n"...)
}

func (f *csvFile) row(r *ExportRow) error {
	f.position++
	f.text(r.Email)
	f.text(r.FirstName)
	f.text(r.LastName)
	f.phone(r.Phone)
	f.number(f.position)
	f.number(r.ReferralCount)
	f.token(r.Token)
	if r.HasReferrer {
		f.token(r.Referrer)
	} else {
		f.end()
	}
	for _, v := range r.UTM {
		f.text(v)
	}
	for _, v := range r.Answers {
		f.text(v)
	}
	f.flag(!r.OptOutAt.IsZero())
	f.moment(r.OptOutAt)
	f.moment(r.ConsentAt)
	f.text(r.ConsentVersion)
	f.text(r.PolicyVersion)
	f.flag(r.Verified)
	f.moment(r.CreatedAt)
	if f.flags {
		// The reasons have commas and no other special characters.
		f.cell(r.Flagged, false)
	}
	f.buf = append(f.buf[:len(f.buf)-1], "\r\n"...)
	// Send the first row at once, so that the download begins.
	if len(f.buf) >= exportChunk || f.position == 1 {
		return f.flush()
	}
	return nil
}

func (f *csvFile) end() { f.buf = append(f.buf, ',') }

func (f *csvFile) number(n int64) {
	f.buf = strconv.AppendInt(f.buf, n, 10)
	f.end()
}

func (f *csvFile) token(t queue.Token) {
	f.buf = hex.AppendEncode(f.buf, t[:])
	f.end()
}

func (f *csvFile) flag(b bool) {
	f.buf = strconv.AppendBool(f.buf, b)
	f.end()
}

func (f *csvFile) moment(t time.Time) {
	if !t.IsZero() {
		f.buf = t.UTC().AppendFormat(f.buf, stampLayout)
	}
	f.end()
}

// text writes a cell of user input. A spreadsheet would run a cell that begins like a
// formula, so text puts an apostrophe in front of it.
func (f *csvFile) text(v []byte) { f.cell(v, formula(v)) }

// formula reports whether a spreadsheet may take v for a formula. Some treat the
// full-width forms of the signs alike.
func formula(v []byte) bool {
	switch first, _ := utf8.DecodeRune(v); first {
	case '=', '+', '-', '@', '\t', '\r', '＝', '＋', '－', '＠':
		return true
	}
	return false
}

// phone is text, except that a number in E.164 form is written as it is.
func (f *csvFile) phone(v []byte) {
	if len(v) > 1 && v[0] == '+' && len(bytes.TrimLeft(v[1:], "0123456789")) == 0 {
		f.cell(v, false)
		return
	}
	f.text(v)
}

// cell also quotes what some programs take for a separator in place of the comma, so
// that no part of a cell becomes a cell of its own.
func (f *csvFile) cell(v []byte, guard bool) {
	quoted := bytes.ContainsAny(v, "\",\r\n;\t")
	if quoted {
		f.buf = append(f.buf, '"')
	}
	if guard {
		f.buf = append(f.buf, '\'')
	}
	if quoted {
		for len(v) > 0 {
			n := bytes.IndexByte(v, '"') + 1
			if n == 0 {
				n = len(v)
				f.buf = append(f.buf, v...)
			} else {
				f.buf = append(append(f.buf, v[:n]...), '"')
			}
			v = v[n:]
		}
		f.buf = append(f.buf, '"')
	} else {
		f.buf = append(f.buf, v...)
	}
	f.end()
}
