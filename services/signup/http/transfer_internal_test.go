package http

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/httpapi"
	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
	"waitlist.internal/services/signup/owners"
)

const (
	list       = "0193d4a2-5c1e-7a41-8000-000000000001"
	exportPath = "/v1/waitlists/" + list + "/export"
	importPath = "/v1/waitlists/" + list + "/import"
)

// whole stands for *owners.Admin.
type whole struct {
	export  func(ctx context.Context, id string, send func([]byte) error) error
	imports func(ctx context.Context, id string, next func() ([]byte, error)) (owners.Imported, error)
	mayRead func() error
}

func (w *whole) Export(ctx context.Context, _ access.Actor, id string, send func([]byte) error) error {
	return w.export(ctx, id, send)
}

func (w *whole) Import(ctx context.Context, _ access.Actor, id string, next func() ([]byte, error)) (owners.Imported, error) {
	return w.imports(ctx, id, next)
}

func (w *whole) MayRead(context.Context, access.Actor, string) error { return w.mayRead() }

// accounts takes one token.
type accounts struct{}

func (accounts) Authorize(_ context.Context, r *accountv1.AuthorizeRequest, _ ...grpc.CallOption) (*accountv1.AuthorizeResponse, error) {
	if r.GetBearerToken() != "good" {
		return nil, apierr.New(apierr.AuthenticationRequired, "no")
	}
	return &accountv1.AuthorizeResponse{}, nil
}

// serve serves the routes over w, with clients that may stall for a moment only.
func serve(t *testing.T, w *whole, recheck time.Duration) *httptest.Server {
	t.Helper()
	e, err := httpapi.NewEngine(httpapi.Config{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	transferHandler{accounts: accounts{}, transfers: w, stall: 300 * time.Millisecond, recheck: recheck}.routes(e)
	web := httptest.NewServer(e)
	t.Cleanup(web.Close)
	return web
}

// answer is one that was read to its end, or to where it broke off.
type answer struct {
	status int
	header http.Header
	body   []byte
	err    error
}

func call(t *testing.T, web *httptest.Server, method, path string, body io.Reader) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, web.URL+path, body)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(path, "token=") {
		req.Header.Set("Authorization", "Bearer good")
	}
	res, err := web.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	return read(res)
}

func read(res *http.Response) answer {
	a := answer{status: res.StatusCode, header: res.Header}
	a.body, a.err = io.ReadAll(res.Body)
	return a
}

// refused reports what an answer says.
func (a answer) refused(t *testing.T) (int, apierr.Code) {
	t.Helper()
	var body struct {
		Code apierr.Code `json:"error_code"`
	}
	if err := json.Unmarshal(a.body, &body); err != nil {
		t.Fatal(err)
	}
	return a.status, body.Code
}

// await waits for the end of an export.
func await(t *testing.T, ended <-chan struct{}) {
	t.Helper()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the export has not ended")
	}
}

func TestExport(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{}, 10)
	web := serve(t, &whole{export: func(_ context.Context, id string, send func([]byte) error) error {
		defer func() { ended <- struct{}{} }()
		if id != list {
			return apierr.NotFoundf("no")
		}
		for _, piece := range []string{"email\r\n", "a@example.com\r\n", strings.Repeat("b@example.com\r\n", 10_000)} {
			if err := send([]byte(piece)); err != nil {
				return err
			}
		}
		return nil
	}}, time.Hour)
	want := "email\r\na@example.com\r\n" + strings.Repeat("b@example.com\r\n", 10_000)
	for _, path := range []string{exportPath, exportPath + "?token=good", strings.Replace(exportPath, list, strings.ToUpper(list), 1)} {
		res := call(t, web, http.MethodGet, path, nil)
		if res.err != nil || res.status != 200 || string(res.body) != want || res.header.Get("Content-Type") != "text/csv; charset=utf-8" ||
			res.header.Get("Content-Disposition") != `attachment; filename="signups-`+list+`.csv"` || res.header.Get("X-Request-Id") == "" {
			t.Errorf("%s: %d, %d bytes, %v, %v", path, res.status, len(res.body), res.header, res.err)
		}
		await(t, ended)
	}
	res := call(t, web, http.MethodHead, exportPath, nil)
	if res.status != 200 || res.header.Get("Content-Disposition") == "" {
		t.Errorf("HEAD: %d, %v", res.status, res.header)
	}
	await(t, ended)
	for path, want := range map[string]int{
		exportPath + "?token=bad": 401, exportPath + "?token=": 401,
		"/v1/waitlists/x/export?token=good": 404,
	} {
		if res := call(t, web, http.MethodGet, path, nil); res.status != want {
			t.Errorf("%s: %d", path, res.status)
		}
	}
}

// TestExportFails: before its first piece that is an answer like any, afterwards
// the file must not seem whole.
func TestExportFails(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		pieces int
		err    error
		status int
	}{
		"refused":         {0, apierr.New(apierr.TierRequired, "no"), 403},
		"too many":        {0, apierr.New(apierr.RateLimited, "no").WithRetryAfter(time.Second), 429},
		"broken":          {0, errors.New("broken"), 500},
		"broken midway":   {1, errors.New("broken"), 200},
		"deleted midway":  {100, apierr.NotFoundf("no"), 200},
		"canceled midway": {3, context.Canceled, 200},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			web := serve(t, &whole{export: func(_ context.Context, _ string, send func([]byte) error) error {
				for range tt.pieces {
					if err := send([]byte("a@example.com\r\n")); err != nil {
						return err
					}
				}
				return tt.err
			}}, time.Hour)
			res := call(t, web, http.MethodGet, exportPath, nil)
			if res.status != tt.status || (res.err == nil) != (tt.pieces == 0) {
				t.Errorf("status %d, the body ends with %v", res.status, res.err)
			}
			if e, ok := errors.AsType[*apierr.Error](tt.err); ok && e.RetryAfter > 0 && res.header.Get("Retry-After") != "1" {
				t.Errorf("Retry-After %q", res.header.Get("Retry-After"))
			}
		})
	}
}

// endless sends as much as is taken, and says when nothing is any more.
func endless(began, ended chan<- struct{}) *whole {
	return &whole{export: func(_ context.Context, _ string, send func([]byte) error) error {
		defer close(ended)
		piece := strings.Repeat("a@example.com\r\n", 4000)
		for first := true; ; first = false {
			if err := send([]byte(piece)); err != nil {
				return err
			}
			if first {
				close(began)
			}
		}
	}}
}

// TestStalledExport: who stops reading, or goes away, ends the export.
func TestStalledExport(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]bool{"stops reading": false, "goes away": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began, ended := make(chan struct{}), make(chan struct{})
			web := serve(t, endless(began, ended), time.Hour)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, web.URL+exportPath, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer good")
			res, err := web.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			<-began
			if leave {
				cancel()
			}
			await(t, ended)
			if _, err := io.Copy(io.Discard, res.Body); err == nil {
				t.Error("half a file seems whole")
			}
		})
	}
}

// pacedWriter is an answer whose client reads so many bytes a second.
type pacedWriter struct {
	*httptest.ResponseRecorder
	rate     time.Duration
	deadline time.Time
}

func (w *pacedWriter) SetWriteDeadline(d time.Time) error { w.deadline = d; return nil }

func (w *pacedWriter) Write(b []byte) (int, error) {
	select {
	case <-time.After(time.Until(w.deadline)):
		return 0, os.ErrDeadlineExceeded
	case <-time.After(time.Duration(len(b)) * time.Second / w.rate):
		return w.ResponseRecorder.Write(b)
	}
}

// TestSlowExport: a client that takes each piece in time, but all of them slowly, loses
// its place.
func TestSlowExport(t *testing.T) {
	t.Parallel()
	const pieces = 50
	piece := strings.Repeat("a@example.com\r\n", 100)
	s := &whole{export: func(_ context.Context, _ string, send func([]byte) error) error {
		for range pieces {
			if err := send([]byte(piece)); err != nil {
				return err
			}
		}
		return nil
	}}
	for name, tt := range map[string]struct {
		rate  time.Duration
		whole bool
	}{
		"half the least rate":   {exportRate / 2, false},
		"ten times the minimum": {exportRate * 10, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			web := serve(t, s, time.Hour)
			w := &pacedWriter{ResponseRecorder: httptest.NewRecorder(), rate: tt.rate}
			req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, exportPath, nil)
			req.Header.Set("Authorization", "Bearer good")
			cut := func() (cut bool) {
				defer func() { cut = recover() != nil }()
				web.Config.Handler.ServeHTTP(w, req)
				return false
			}()
			if got := w.Body.Len(); cut == tt.whole || (got == pieces*len(piece)) != tt.whole || got == 0 {
				t.Errorf("%d of %d bytes, cut: %v", got, pieces*len(piece), cut)
			}
		})
	}
}

// TestHeadOfExport: nobody makes a file of which only the header is sent.
func TestHeadOfExport(t *testing.T) {
	t.Parallel()
	began, ended := make(chan struct{}), make(chan struct{})
	web := serve(t, endless(began, ended), time.Hour)
	if a := call(t, web, http.MethodHead, exportPath,
		nil); a.status != 200 || a.header.Get("Content-Type") != "text/csv; charset=utf-8" || len(a.body) > 0 {
		t.Errorf("%+v", a)
	}
	await(t, ended)
}

// TestExportThatDoesNotBegin is an answer within five seconds.
func TestExportThatDoesNotBegin(t *testing.T) {
	t.Parallel()
	web := serve(t, &whole{export: func(ctx context.Context, _ string, _ func([]byte) error) error {
		<-ctx.Done()
		return ctx.Err()
	}}, time.Hour)
	start := time.Now()
	res := call(t, web, http.MethodGet, exportPath, nil)
	if status, code := res.refused(t); status != 500 || code != apierr.InternalError || res.header.Get("Retry-After") == "" {
		t.Errorf("%d %s %v", status, code, res.header)
	}
	if took := time.Since(start); took > 8*time.Second {
		t.Errorf("after %s", took)
	}
}

// TestExportOfWhoLosesAccess ends midway, unless the one who is asked is away.
func TestExportOfWhoLosesAccess(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err   error
		whole bool
	}{
		"lost": {apierr.New(apierr.Forbidden, "no"), false}, "deleted": {apierr.NotFoundf("no"), false},
		"away": {errors.New("away"), true}, "kept": {nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			web := serve(t, &whole{
				export: func(_ context.Context, _ string, send func([]byte) error) error {
					for range 3 {
						if err := send([]byte("a@example.com\r\n")); err != nil {
							return err
						}
					}
					return nil
				},
				mayRead: func() error { return tt.err },
			}, 0)
			res := call(t, web, http.MethodGet, exportPath, nil)
			if res.status != 200 || (res.err == nil) != tt.whole {
				t.Errorf("%d, the body ends with %v", res.status, res.err)
			}
		})
	}
}

// received is what was read of an import.
type received struct {
	id   string
	body []byte
	err  error
}

// taker reads whole imports and answers with what answer makes of them.
func taker(answer func(received) (owners.Imported, error)) *whole {
	return &whole{imports: func(_ context.Context, id string, next func() ([]byte, error)) (owners.Imported, error) {
		r := received{id: id}
		for {
			piece, err := next()
			if err != nil {
				r.err = err
				return answer(r)
			}
			r.body = append(r.body, piece...)
		}
	}}
}

func TestImport(t *testing.T) {
	t.Parallel()
	limit := []byte(strings.Repeat("0123456789abcdef", httpapi.ImportBodyLimit/16))
	body := limit
	res := owners.Imported{Imported: 5, Skipped: 7}
	web := serve(t, taker(func(r received) (owners.Imported, error) {
		if !errors.Is(r.err, io.EOF) || !bytes.Equal(r.body, body) || r.id != list {
			return owners.Imported{}, fmt.Errorf("%d bytes, %w", len(r.body), r.err)
		}
		return res, nil
	}), time.Hour)
	for _, tt := range []struct {
		errors []owners.ImportError
		want   string
	}{
		{nil, `{"imported":5,"skipped":7,"errors":[]}`},
		{
			[]owners.ImportError{{Row: 3, Email: "<x>", Message: "bad"}, {Row: 4}},
			`{"imported":5,"skipped":7,"errors":[{"row":3,"email":"<x>","error":"bad"},{"row":4,"email":"","error":""}]}`,
		},
	} {
		res.Errors = tt.errors
		got := call(t, web, http.MethodPost, importPath, bytes.NewReader(body))
		body = limit[:100_000] // from the second on
		if got.status != 200 || strings.TrimSpace(string(got.body)) != tt.want {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	if got := call(t, web, http.MethodPost, importPath+"?token=good", bytes.NewReader(nil)); got.status != 401 {
		t.Errorf("token in the query: %d", got.status)
	}
}

// TestImportIsRefused: also while its body is still being sent, and none that
// broke off is taken for whole.
func TestImportIsRefused(t *testing.T) {
	t.Parallel()
	forbidden := &whole{imports: func(context.Context, string, func() ([]byte, error)) (owners.Imported, error) {
		return owners.Imported{}, apierr.New(apierr.Forbidden, "no")
	}}
	big := strings.Repeat(" ", httpapi.ImportBodyLimit+1)
	web := serve(t, forbidden, time.Hour)
	for _, size := range []int{0, 10, 1 << 20, 8 << 20} {
		if status, code := call(t, web, http.MethodPost, importPath,
			strings.NewReader(big[:size])).refused(t); status != 403 || code != apierr.Forbidden {
			t.Errorf("%d bytes: %d %s", size, status, code)
		}
	}
	// Who reads nothing before everything is written sees it too, whatever it is.
	for _, request := range []string{
		importPath + " HTTP/1.1\r\nAuthorization: Bearer bad",
		importPath + " HTTP/1.1\r\nAuthorization: Bearer good",
	} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", web.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "POST "+request+"\r\nHost: x\r\nContent-Length: 8388608\r\n\r\n"+big[:8<<20]); err != nil {
			t.Errorf("%s: %v", request, err)
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(request, err)
		}
		if status, _ := read(res).refused(t); status < 401 || status > 404 {
			t.Errorf("%s: %d", request, status)
		}
		_ = res.Body.Close()
		_ = conn.Close()
	}

	// Also who reads nothing before all is sent.
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", web.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer good\r\nContent-Length: %d\r\n\r\n%s",
		importPath, 8<<20, big[:8<<20]); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != 403 {
		t.Errorf("who sends all first: %d", res.StatusCode)
	}

	got := make(chan received, 1)
	web = serve(t, taker(func(r received) (owners.Imported, error) {
		got <- r
		return owners.Imported{}, apierr.New(apierr.InvalidBody, "no")
	}), time.Hour)
	body := `{"signups":[]}`
	for name, request := range map[string]string{
		"bad chunk": "Transfer-Encoding: chunked\r\n\r\ne\r\n" + body + "\r\nXYZ\r\n",
		"too slow":  "Content-Length: 100\r\n\r\n" + body,
	} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", web.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "POST "+importPath+" HTTP/1.1\r\nHost: x\r\n"+
			"Authorization: Bearer good\r\n"+request); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(name, err)
		}
		if status, code := read(res).refused(t); status != 400 || code != apierr.InvalidBody {
			t.Errorf("%s: %d %s", name, status, code)
		}
		_ = res.Body.Close()
		if r := <-got; json.Valid(r.body) && errors.Is(r.err, io.EOF) {
			t.Errorf("%s: signup got %q, %v", name, r.body, r.err)
		}
	}

	// Who goes away while sending.
	conn, err = (&net.Dialer{}).DialContext(t.Context(), "tcp", web.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "POST "+importPath+" HTTP/1.1\r\nHost: x\r\n"+
		"Authorization: Bearer good\r\nContent-Length: 100\r\n\r\n"+body); err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	web.Close() // waits for the request
	select {
	case r := <-got:
		if json.Valid(r.body) && errors.Is(r.err, io.EOF) {
			t.Errorf("who goes away: signup got %q, %v", r.body, r.err)
		}
	default: // nothing at all
	}
}
