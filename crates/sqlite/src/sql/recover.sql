-- Another life of the database. Milliseconds since 1970 and chance, in hexadecimal digits.
insert into changefeed_incarnation (number, incarnation)
select (select coalesce(max(number), 0) + 1 from changefeed_incarnation),
       printf('%012x', cast((julianday('now') - 2440587.5) * 86400000 as integer)) || lower(hex(randomblob(10)));
