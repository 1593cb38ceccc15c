package http

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/gin-gonic/gin"

	"waitlist.internal/proto/openapi"
	"waitlist.internal/services/pages/reference"
)

// docsFor is how long a browser keeps the reference. It changes with a new version.
const docsFor = "public, max-age=300"

// docs adds the API reference, made once. It is in English, as the interface is.
func (h *handler) docs(e *gin.Engine) error {
	r, err := reference.Parse(openapi.Document(), h.public+"/v1")
	if err != nil {
		return err
	}
	for path, page := range map[string]struct{ template, title string }{
		"/docs": {"docs", "API reference"}, "/docs/errors": {"docs-errors", "Error codes"},
	} {
		var b bytes.Buffer
		v := &view{catalogue: h.languages.list[0], h: h, Title: page.title, Data: r}
		if err := h.templates[page.template].Execute(&b, v); err != nil {
			return fmt.Errorf("render %s: %w", page.template, err)
		}
		get(e, path, fixedAnswer(b.Bytes(), "text/html; charset=utf-8", "Content-Security-Policy", fmt.Sprintf(policy, "", "")))
	}
	for path, body := range map[string][]byte{"/openapi.yaml": r.YAML, "/openapi.json": r.JSON} {
		kind := map[bool]string{true: "application/json", false: "application/yaml"}[strings.HasSuffix(path, ".json")]
		get(e, path, fixedAnswer(body, kind, "Access-Control-Allow-Origin", "*"))
	}
	return nil
}

// fixedAnswer returns a handler that always answers with body, compressed if the client
// takes that, and with one more header.
func fixedAnswer(body []byte, kind, header, value string) gin.HandlerFunc {
	packed := pack(body)
	return func(c *gin.Context) {
		h := c.Writer.Header()
		h.Del("Access-Control-Allow-Origin")
		h.Set(header, value)
		h.Set("Cache-Control", docsFor)
		smaller(c, kind, body, packed)
	}
}
