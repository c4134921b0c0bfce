module kvplug.example/cache_go

go 1.21
