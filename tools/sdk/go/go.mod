module waitlist.internal/tools/sdk/go

go 1.26.0
