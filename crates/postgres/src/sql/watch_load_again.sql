-- Forgets how far existing rows were loaded, if that is not a key of the table: $2 are the types of its columns.
update changefeed.watch w
set loaded_to = null
where w.name = $1 and w.loading and w.loaded_to is not null
  and exists (select from unnest($2::text[]) with ordinality k(type, place)
              where case when jsonb_typeof(w.loaded_to) = 'array'
                              and jsonb_array_length(w.loaded_to) = cardinality($2::text[])
                              and jsonb_typeof(w.loaded_to -> (k.place - 1)::integer) = 'string'
                         then not changefeed.readable(w.loaded_to ->> (k.place - 1)::integer, k.type::regtype)
                         else true end)
