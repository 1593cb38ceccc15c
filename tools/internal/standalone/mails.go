package standalone

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"strings"

	"waitlist.internal/tools/internal/mailfile"
)

//go:embed mails.html
var mailsHTML string

//go:embed mails.css
var mailsCSS []byte

const (
	mailsPath = "/dev/mail"
	// most is how many mails the list shows, the newest ones.
	most = 200
)

// mails shows the files of MAIL_DIR. They have everybody's tokens, so only holders of DEV_KEY may look.
type mails struct {
	folder fs.FS
	page   *template.Template
}

func newMails(dir string) (*mails, error) {
	page, err := template.New("mails").Parse(mailsHTML)
	if err != nil {
		return nil, fmt.Errorf("parse the page of the mails: %w", err)
	}
	return &mails{folder: os.DirFS(dir), page: page}, nil
}

// ServeHTTP answers the paths from mailsPath on.
//
//	/dev/mail              the list
//	/dev/mail/<name>       a mail
//	/dev/mail/<name>/html  its HTML alone, in a sandbox
func (m *mails) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.Error(w, "Mails can only be read.", http.StatusMethodNotAllowed)
		return
	}
	name, html := strings.CutSuffix(strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, mailsPath), "/"), "/html")
	if name == "style.css" {
		h.Set("Content-Type", "text/css; charset=utf-8")
		_, _ = w.Write(mailsCSS)
		return
	}
	var data struct {
		List []mailfile.Mail
		Mail *mailfile.Mail
	}
	var err error
	if name == "" {
		data.List, err = mailfile.All(m.folder)
		slices.Reverse(data.List)
		data.List = data.List[:min(len(data.List), most)]
	} else {
		var one mailfile.Mail
		one, err = mailfile.Read(m.folder, name)
		data.Mail = &one
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid):
		http.Error(w, "There is no such mail.", http.StatusNotFound)
		return
	case err != nil:
		http.Error(w, "The mails cannot be read: "+err.Error(), http.StatusInternalServerError)
		return
	}
	if html {
		// The mail's own HTML: no script, no request, and links that open in the whole window.
		h.Set("Content-Security-Policy", "sandbox allow-top-navigation-by-user-activation; default-src 'none'; "+
			"style-src 'unsafe-inline'; img-src data:; base-uri 'none'; frame-ancestors 'self'")
		h.Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write([]byte(`<base target="_top">` + data.Mail.HTML))
		return
	}
	var b bytes.Buffer
	if err := m.page.Execute(&b, data); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; frame-src 'self'; base-uri 'none'; "+
		"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'")
	h.Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(b.Bytes())
}
