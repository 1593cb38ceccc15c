package signup

import "github.com/mileusna/useragent"

// maxUserAgent bounds what of a User-Agent is read.
const maxUserAgent = 1024

// deviceType returns desktop, mobile or tablet, "" where the User-Agent does
// not tell.
func deviceType(userAgent string) string {
	ua := useragent.Parse(userAgent[:min(len(userAgent), maxUserAgent)])
	switch {
	case ua.Bot:
		return ""
	case ua.Tablet:
		return "tablet"
	case ua.Mobile:
		return "mobile"
	case ua.Desktop:
		return "desktop"
	default:
		return ""
	}
}
