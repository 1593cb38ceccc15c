package signup

import (
	"strings"

	"github.com/mileusna/useragent"
)

// maxUserAgent bounds what of a User-Agent is read.
const maxUserAgent = 1024

// deviceType returns desktop, mobile or tablet, "" where the User-Agent does
// not tell.
func deviceType(userAgent string) string {
	userAgent = userAgent[:min(len(userAgent), maxUserAgent)]
	ua := useragent.Parse(userAgent)
	switch {
	case ua.Bot:
		return ""
	// Browsers on Android say Mobile on phones only.
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
