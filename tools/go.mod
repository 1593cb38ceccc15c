module waitlist.internal/tools

go 1.26.0

require (
	waitlist.internal/libs v0.0.0
	waitlist.internal/proto v0.0.0
	waitlist.internal/services/account v0.0.0
	waitlist.internal/services/admin-analytics v0.0.0
	waitlist.internal/services/billing v0.0.0
	waitlist.internal/services/messaging v0.0.0
	waitlist.internal/services/notifier v0.0.0
	waitlist.internal/services/signup v0.0.0
)

require (
	github.com/getkin/kin-openapi v0.152.0 // indirect
	gopkg.in/yaml.v3 v3.0.1
)

replace waitlist.internal/proto => ../proto

replace waitlist.internal/libs => ../libs

replace waitlist.internal/services/account => ../services/account

replace waitlist.internal/services/admin-analytics => ../services/admin-analytics

replace waitlist.internal/services/billing => ../services/billing

replace waitlist.internal/services/messaging => ../services/messaging

replace waitlist.internal/services/notifier => ../services/notifier

replace waitlist.internal/services/signup => ../services/signup
