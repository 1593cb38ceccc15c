package stripesim

import (
	"bytes"
	"fmt"
	"html/template"
	"net/http"
	"strings"
)

// layout is the frame of all pages, which are plain forms without scripts.
const layout = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{{.Title}}</title>
<style>body{font:16px/1.5 sans-serif;max-width:32rem;margin:3rem auto;padding:0 1rem}
button{display:block;margin:.5rem 0;padding:.5rem 1rem}</style>
</head><body><h1>{{.Title}}</h1><p>A payment simulator: no card is charged.</p>
{{with .Problem}}<p role="alert">{{.}}</p>{{end}}
{{range .Lines}}<p>{{.}}</p>{{end}}
{{if .Choices}}<form method="post">{{range .Choices}}<button name="choice" value="{{.Value}}">{{.Label}}</button>{{end}}</form>{{end}}
{{with .Back}}<p><a href="{{.}}">Back</a></p>{{end}}
</body></html>
`

type pageData struct {
	Title, Problem, Back string
	Lines                []string
	Choices              []choice
}

type choice struct{ Value, Label string }

// Choices on the checkout page.
var checkoutChoices = []choice{
	{"pay", "Pay with 4242 4242 4242 4242"},
	{"decline", "Pay with 4000 0000 0000 0002 (declined)"},
	{"later", "Pay with 4000 0000 0000 0341 (declined from the second payment on)"},
	{"cancel", "Cancel"},
}

var portalChoices = []choice{
	{"cancel", "Cancel the subscription at the end of its period"},
	{"resume", "Keep the subscription"},
	{"card", "Change the card to 4242 4242 4242 4242"},
	{"bad_card", "Change the card to 4000 0000 0000 0002 (declined)"},
	{"return", "Return"},
}

// cardChoices maps the choices of the pages to cards.
var cardChoices = map[string]string{
	"pay": goodCard, "decline": badCard, "later": lateCard, "card": goodCard, "bad_card": badCard,
}

func (s *Server) pages() {
	s.mux.HandleFunc("GET /c/pay/{id}", s.checkoutPage)
	s.mux.HandleFunc("POST /c/pay/{id}", s.checkoutPage)
	s.mux.HandleFunc("GET /p/session/{id}", s.portalPage)
	s.mux.HandleFunc("POST /p/session/{id}", s.portalPage)
	s.mux.HandleFunc("GET /invoice/{id}", s.invoicePage)
	s.mux.HandleFunc("GET /invoice/{id}/pdf", s.invoicePDF)
}

func write(w http.ResponseWriter, status int, p pageData) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	w.WriteHeader(status)
	t, err := template.New("page").Parse(layout)
	if err == nil {
		_ = t.Execute(w, p)
	}
}

// enter prepares a page: it takes the lock and lets everything happen that is due.
func (s *Server) enter(w http.ResponseWriter, r *http.Request) (choice string) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	choice = r.PostFormValue("choice")
	s.mu.Lock()
	s.settle()
	s.state.Base = s.base(r)
	return choice
}

// leave saves the state and releases the lock.
func (s *Server) leave() {
	_ = s.save() // if this fails, the next change saves again
	s.mu.Unlock()
}

// checkoutPage shows a session and takes its payment, once, however often the form is sent.
func (s *Server) checkoutPage(w http.ResponseWriter, r *http.Request) {
	picked := s.enter(w, r)
	defer s.leave()
	cs, err := s.session(r.PathValue("id"))
	if err != nil {
		write(w, http.StatusNotFound, pageData{Title: "Nothing here", Lines: []string{"This page does not exist."}})
		return
	}
	p := s.state.Prices.byID[cs.Sim.Price]
	data := pageData{Title: "Checkout", Choices: checkoutChoices, Lines: []string{
		"Subscribe to " + s.name(*p),
		money(p.UnitAmount*cs.Sim.Quantity, p.Currency) + " per " + p.Recurring.Interval,
	}}
	c := s.state.Customers.byID[string(cs.Customer)]
	switch {
	case cs.Status == "complete" && r.Method == http.MethodPost:
		http.Redirect(w, r, cs.landing(), http.StatusSeeOther)
		return
	case cs.Status != "open":
		write(w, http.StatusGone, pageData{Title: "Checkout", Lines: []string{"This page is " + cs.Status + "."}, Back: string(cs.CancelURL)})
		return
	case c != nil && c.Deleted:
		write(w, http.StatusGone, pageData{
			Title: "Checkout", Lines: []string{"This customer no longer exists."}, Back: string(cs.CancelURL),
		})
		return
	case r.Method == http.MethodGet:
		write(w, http.StatusOK, data)
		return
	}
	if picked == "cancel" && cs.CancelURL != "" {
		http.Redirect(w, r, string(cs.CancelURL), http.StatusSeeOther)
		return
	}
	last4, ok := cardChoices[picked]
	if !ok {
		data.Problem = "Choose one of the buttons."
		write(w, http.StatusBadRequest, data)
		return
	}
	s.dirty = true
	if !s.complete(cs, last4, s.base(r)) {
		data.Problem = "Your card was declined."
		write(w, http.StatusPaymentRequired, data)
		return
	}
	http.Redirect(w, r, cs.landing(), http.StatusSeeOther)
}

// portalPage lets a customer cancel, resume and change the card.
func (s *Server) portalPage(w http.ResponseWriter, r *http.Request) {
	picked := s.enter(w, r)
	defer s.leave()
	p, ok := s.state.Portals.byID[r.PathValue("id")]
	if !ok || s.owner(ref(p.Customer)).Deleted {
		write(w, http.StatusNotFound, pageData{Title: "Nothing here", Lines: []string{"This page does not exist."}})
		return
	}
	c := s.owner(ref(p.Customer))
	now := s.timeOf(c)
	status := http.StatusOK
	data := pageData{Title: "Your subscription", Choices: portalChoices, Back: string(p.ReturnURL)}
	if r.Method == http.MethodPost {
		s.dirty = true
		switch picked {
		case "cancel", "resume":
			for _, sub := range s.state.Subs.rows {
				if sub.Customer == ref(c.ID) && !ended(sub) && sub.CancelAtPeriodEnd != (picked == "cancel") {
					s.setAtEnd(sub, picked == "cancel", now)
					s.emit("customer.subscription.updated", sub, now)
				}
			}
		case "card", "bad_card":
			s.change(c, cardChoices[picked], now)
		case "return":
			if p.ReturnURL != "" {
				http.Redirect(w, r, string(p.ReturnURL), http.StatusSeeOther)
				return
			}
		default:
			status, data.Problem = http.StatusBadRequest, "Choose one of the buttons."
		}
	}
	for _, sub := range s.state.Subs.rows {
		if sub.Customer != ref(c.ID) {
			continue
		}
		text := fmt.Sprintf("%s: %s until %s", s.name(sub.Sim.Item.Price), sub.Status, date(sub.CurrentPeriodEnd))
		if sub.CancelAtPeriodEnd && !ended(sub) {
			text += ", and ends then"
		}
		data.Lines = append(data.Lines, text)
	}
	write(w, status, data)
}

func (s *Server) invoiceLines(inv *invoice) []string {
	lines := []string{"Date: " + date(inv.Created)}
	for _, l := range inv.Sim.Lines {
		lines = append(lines, l.Description+": "+money(l.Amount, l.Currency))
	}
	return append(lines, "Due: "+money(inv.AmountDue, inv.Currency), "Status: "+inv.Status)
}

func (s *Server) invoicePage(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	inv, err := s.invoice(r.PathValue("id"))
	if err != nil {
		write(w, http.StatusNotFound, pageData{Title: "Nothing here", Lines: []string{"This page does not exist."}})
		return
	}
	write(w, http.StatusOK, pageData{Title: "Invoice " + string(inv.Number), Lines: s.invoiceLines(inv)})
}

func (s *Server) invoicePDF(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	inv, err := s.invoice(r.PathValue("id"))
	if err != nil {
		write(w, http.StatusNotFound, pageData{Title: "Nothing here", Lines: []string{"This page does not exist."}})
		return
	}
	w.Header().Set("Content-Type", "application/pdf")
	w.Header().Set("Content-Disposition", `attachment; filename="invoice.pdf"`)
	_, _ = w.Write(pdf(append([]string{"Invoice " + string(inv.Number)}, s.invoiceLines(inv)...)))
}

// pdf returns a page with lines of text.
func pdf(lines []string) []byte {
	var text strings.Builder
	text.WriteString("BT /F1 12 Tf 16 TL 50 780 Td\n")
	for _, l := range lines {
		l = strings.NewReplacer(`\`, `\\`, "(", `\(`, ")", `\)`, "×", "x", "¥", "JPY ").Replace(l)
		text.WriteString("(" + l + ") Tj T*\n")
	}
	text.WriteString("ET")
	objects := []string{
		"<< /Type /Catalog /Pages 2 0 R >>",
		"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
		"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>",
		fmt.Sprintf("<< /Length %d >>\nstream\n%s\nendstream", text.Len(), text.String()),
		"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
	}
	var out bytes.Buffer
	out.WriteString("%PDF-1.4\n")
	offsets := make([]int, 0, len(objects))
	for i, o := range objects {
		offsets = append(offsets, out.Len())
		fmt.Fprintf(&out, "%d 0 obj\n%s\nendobj\n", i+1, o)
	}
	start := out.Len()
	fmt.Fprintf(&out, "xref\n0 %d\n0000000000 65535 f \n", len(objects)+1)
	for _, at := range offsets {
		fmt.Fprintf(&out, "%010d 00000 n \n", at)
	}
	fmt.Fprintf(&out, "trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n", len(objects)+1, start)
	return out.Bytes()
}
