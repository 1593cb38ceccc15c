package http

import (
	"crypto/sha256"
	"crypto/sha512"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"path"
	"strings"

	"github.com/gin-gonic/gin"
)

//go:embed assets/*
var assetFiles embed.FS

// asset is a file that pages or other sites load.
type asset struct {
	body []byte
	kind string
	// url names the content, so that browsers may keep it for good.
	url string
	// integrity is for the attribute of that name.
	integrity string
}

// loadAssets returns the assets by the names of their files.
func loadAssets() (map[string]asset, error) {
	kinds := map[string]string{
		".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
	}
	entries, err := assetFiles.ReadDir("assets")
	if err != nil {
		return nil, fmt.Errorf("list the assets: %w", err)
	}
	out := map[string]asset{}
	for _, e := range entries {
		body, err := assetFiles.ReadFile("assets/" + e.Name())
		if err != nil {
			return nil, fmt.Errorf("read an asset: %w", err)
		}
		sum, long := sha256.Sum256(body), sha512.Sum384(body)
		ext := path.Ext(e.Name())
		out[e.Name()] = asset{
			body: body, kind: kinds[ext],
			url:       "/assets/" + strings.TrimSuffix(e.Name(), ext) + "-" + hex.EncodeToString(sum[:6]) + ext,
			integrity: "sha384-" + base64.StdEncoding.EncodeToString(long[:]),
		}
	}
	return out, nil
}

// serve answers with the asset. Other sites may load it, too.
func (a asset) serve(caching string) gin.HandlerFunc {
	return func(c *gin.Context) {
		h := c.Writer.Header()
		h.Set("Cache-Control", caching)
		h.Set("Access-Control-Allow-Origin", "*")
		h.Set("Cross-Origin-Resource-Policy", "cross-origin")
		c.Data(http.StatusOK, a.kind, a.body)
	}
}
