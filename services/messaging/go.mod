module waitlist.internal/services/messaging

go 1.26.0

require (
	waitlist.internal/libs v0.0.0
	waitlist.internal/proto v0.0.0
)

require (
	github.com/emersion/go-sasl v0.0.0-20241020182733-b788ff22d5a6 // indirect
	github.com/emersion/go-smtp v0.25.1 // indirect
	github.com/wneessen/go-mail v0.8.1 // indirect
	golang.org/x/crypto v0.58.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)

replace waitlist.internal/proto => ../../proto

replace waitlist.internal/libs => ../../libs
