package http

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"
)

// Every version of the widget is kept in assets/widgets, because sites may load that very
// one for good. A version that was never released may be deleted.
//
//go:generate sh -c "cp assets/widget.js assets/widgets/widget-$(sha256sum assets/widget.js | cut -c1-12).js"

//go:embed assets
var assetFiles embed.FS

// asset is a file that pages or other sites load.
type asset struct {
	body, packed []byte // packed is compressed by gzip
	kind         string
	// url names the content, so that browsers may keep it for good.
	url string
	// integrity is for the attribute of that name.
	integrity string
}

// loadAssets returns the assets by the names of their files, and all that are served below
// /assets by their URLs, former versions of the widget among them.
func loadAssets() (named, served map[string]asset, err error) {
	kinds := map[string]string{
		".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
	}
	named, served = map[string]asset{}, map[string]asset{}
	err = fs.WalkDir(assetFiles, "assets", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := assetFiles.ReadFile(file)
		if err != nil {
			return err
		}
		sum, long := sha256.Sum256(body), sha512.Sum384(body)
		ext := path.Ext(file)
		made := asset{
			body: body, packed: pack(body), kind: kinds[ext],
			url:       "/assets/" + strings.TrimSuffix(path.Base(file), ext) + "-" + hex.EncodeToString(sum[:6]) + ext,
			integrity: "sha384-" + base64.StdEncoding.EncodeToString(long[:]),
		}
		if path.Dir(file) == "assets/widgets" {
			made.url = "/assets/" + path.Base(file)
		} else {
			named[d.Name()] = made
		}
		served[made.url] = made
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read the assets: %w", err)
	}
	return named, served, nil
}

// versioned answers with an asset by the URL that names its content. During a release, a
// page of one version may ask a replica of another for its style: it gets this replica's,
// which nobody may keep.
func (h *handler) versioned(served map[string]asset) gin.HandlerFunc {
	version := regexp.MustCompile(`-[0-9a-f]{12}(\.[a-z]+)$`)
	return func(c *gin.Context) {
		if a, ok := served[c.Request.URL.Path]; ok {
			a.serve(forGood)(c)
			return
		}
		file := c.Param("file")
		if a, ok := h.assets[version.ReplaceAllString(file, "$1")]; ok && version.MatchString(file) {
			a.serve("no-store")(c)
			return
		}
		h.handle((*view).gone)(c)
	}
}

// serve answers with the asset. Other sites may load it, too.
func (a asset) serve(caching string) gin.HandlerFunc {
	return func(c *gin.Context) {
		h := c.Writer.Header()
		h.Set("Cache-Control", caching)
		h.Set("Access-Control-Allow-Origin", "*")
		h.Set("Cross-Origin-Resource-Policy", "cross-origin")
		smaller(c, a.kind, a.body, a.packed)
	}
}

// pack compresses an answer that does not change.
func pack(body []byte) []byte {
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // a level that there is
	_, _ = w.Write(body)                                  // a buffer takes everything
	_ = w.Close()
	return b.Bytes()
}

// smaller answers with packed if the client takes gzip, else with body.
func smaller(c *gin.Context, kind string, body, packed []byte) {
	c.Writer.Header().Set("Vary", "Accept-Encoding")
	if takesGzip(c.GetHeader("Accept-Encoding")) {
		c.Writer.Header().Set("Content-Encoding", "gzip")
		body = packed
	}
	c.Data(http.StatusOK, kind, body)
}

// takesGzip reports whether an Accept-Encoding names gzip without refusing it.
func takesGzip(accepted string) bool {
	for one := range strings.SplitSeq(accepted, ",") {
		name, weight, _ := strings.Cut(one, ";")
		if strings.EqualFold(strings.TrimSpace(name), "gzip") {
			_, q, _ := strings.Cut(weight, "q=")
			n, err := strconv.ParseFloat(strings.TrimSpace(q), 64)
			return q == "" || err == nil && n > 0
		}
	}
	return false
}
