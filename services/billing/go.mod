module waitlist.internal/services/billing

go 1.26.0

require (
	waitlist.internal/libs v0.0.0
	waitlist.internal/proto v0.0.0
)

replace waitlist.internal/proto => ../../proto

replace waitlist.internal/libs => ../../libs
