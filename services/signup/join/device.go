package join

import (
	"strings"

	"github.com/mileusna/useragent"
)

// maxUserAgent bounds the bytes of a User-Agent that are read.
const maxUserAgent = 1024

// deviceType returns desktop, mobile or tablet, or "" if the User-Agent does not
// tell.
func deviceType(userAgent string) string {
	userAgent = userAgent[:min(len(userAgent), maxUserAgent)]
	ua := useragent.Parse(userAgent)
	switch {
	case ua.Bot:
		return ""
	// Android browsers say Mobile only on phones.
	case ua.Tablet, ua.IsAndroid() && !strings.Contains(userAgent, "Mobile"):
		return "tablet"
	case ua.Mobile:
		return "mobile"
	case ua.Desktop:
		return "desktop"
	default:
		return ""
	}
}
